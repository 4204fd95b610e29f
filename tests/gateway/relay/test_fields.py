"""The model in a JSON body: found as every JSON parser would find it."""

import errno
import io
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ostler.gateway.control import Filters, ModelSetup
from ostler.gateway.relay import body, fields
from ostler.gateway.relay.fields import Named, NotReadable, named, rewritten

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
NAMES = st.sampled_from(["model", "stream", "Model", "model ", "mod\\u0065l", "x", "messages", "", "ä"])
TEXTS = st.one_of(
    st.text(max_size=8),
    st.sampled_from(['"model": "no"', "}", '{"model":"inner"}', "\\", '\\"', "😀", "\ud83d", "\x00", "model"]),
)
SPACES = st.sampled_from(["", " ", "\n\t "])


@st.composite
def json_text(draw: st.DrawFn, depth: int = 2) -> str:
    """JSON as somebody may write it: repeated and escaped names, nesting, spaces, odd literals."""
    kind = draw(st.integers(0, 6 if depth else 4))
    if kind == 0:
        return (
            json.dumps(draw(TEXTS), ensure_ascii=draw(st.booleans()))
            .encode("utf-8", "surrogatepass")
            .decode("utf-8", "replace")
        )
    if kind == 1:
        return draw(
            st.sampled_from(
                ["true", "false", "null", "NaN", "-Infinity", "0", "-1.5e3", "1e999", "12345678901234567890"]
            )
        )
    if kind == 2:
        return json.dumps(draw(st.sampled_from(["small", "org/small", "ä\n", "\ud83d"])))
    if kind in (3, 4):
        return draw(st.sampled_from(["true", '"m"', "[]", "{}"]))
    space = draw(SPACES)
    if kind == 5:
        return "[" + ("," + space).join(draw(st.lists(json_text(depth=depth - 1), max_size=3))) + "]"
    return draw(json_object(depth=depth - 1))


@st.composite
def json_object(draw: st.DrawFn, depth: int = 2) -> str:
    space = draw(SPACES)
    fields = draw(st.lists(st.tuples(NAMES, json_text(depth=depth)), max_size=5))
    inside = ("," + space).join(f'"{name}"{space}:{space}{value}' for name, value in fields)
    return space + "{" + space + inside + "}" + space


def expected(body: bytes) -> Named | None:
    try:
        fields = json.loads(body)
    except ValueError:
        return None
    if not isinstance(fields, dict) or not isinstance(fields.get("model"), str):
        return None
    return Named(fields["model"], fields.get("stream") is True)


def found(body: bytes) -> Named | None:
    try:
        return named(body)
    except NotReadable:
        return None


@PATIENT
@given(json_object().map(lambda text: text.encode("utf-8", "replace")))
@example(b'{"model":"a","model":"b"}')
@example(b'{"a":{"model":"inner"},"model":"outer"}')
@example(b'{"mod\\u0065l":"escaped"}')
@example(b'{"messages":[{"content":"\\ud83d"}],"model":"cut emoji"}')
@example(b'{"temperature":NaN,"model":"m"}')
@example(b'{"model":"m","stream":"true"}')
@example(b'{"model":"a","stream":true,"stream":false}')
@example(b'\xef\xbb\xbf{"model":"m"}')
def test_any_object_is_read_as_a_json_parser_reads_it(body: bytes) -> None:
    assert found(body) == expected(body)


@PATIENT
@given(json_object().map(str.encode), st.data())
def test_an_object_that_was_cut_or_spoilt_is_never_read_otherwise_than_by_a_parser(
    body: bytes, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(body)))
    for spoilt in (body[:at], body[:at] + data.draw(st.binary(max_size=2)) + body[at:]):
        wanted = expected(spoilt)
        # Bytes that are not UTF-8, in a value that nobody looks at, are the model server's affair.
        if wanted is not None or _is_utf8(spoilt):
            assert found(spoilt) == wanted


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{}", "no field `model`"),
        (b'{"model": 3}', "must be a string"),
        (b'{"model": null}', "must be a string"),
        (b'["model"]', "must be a JSON object"),
        (b"model=small", "not JSON"),
        (b'{"model":', "not JSON"),
        (b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b',"model":"m"}', "nested too deeply"),
    ],
)
def test_a_body_without_a_model_is_refused_with_what_is_wrong_with_it(body: bytes, said: str) -> None:
    with pytest.raises(NotReadable, match=said):
        named(body)


def test_filters_strip_set_and_rename_and_touch_nothing_else() -> None:
    setup = ModelSetup(
        upstream_name="real", filters=Filters(strip=["seed", "model"], set={"top_k": 3, "model": "no", "a": {"b": [1]}})
    )
    body = (
        b'{"seed": 1, "model": "alias", "temperature": 0.10, "big": 12345678901234567890123, "messages": [ {"x":1.0} ]}'
    )
    out = rewritten(body, setup)
    assert json.loads(out) == {
        **{"model": "real", "temperature": 0.1, "big": 12345678901234567890123, "messages": [{"x": 1.0}]},
        **{"top_k": 3, "a": {"b": [1]}},
    }
    assert b"0.10" in out and b'[ {"x":1.0} ]' in out


def test_filters_leave_the_name_of_the_model_alone() -> None:
    out = rewritten(b'{"model": "mine"}', ModelSetup(filters=Filters(strip=["model"], set={"model": "no", "x": 1})))
    assert json.loads(out) == {"model": "mine", "x": 1}


@PATIENT
@given(json_object().map(str.encode))
def test_a_rewritten_body_is_what_a_parser_would_make_of_it(body: bytes) -> None:
    wanted = expected(body)
    if wanted is None:
        return
    fields: dict[str, Any] = json.loads(body)
    fields.pop("x", None)
    fields |= {"model": "real", "set": [1]}
    out = rewritten(body, ModelSetup(upstream_name="real", filters=Filters(strip=["x"], set={"set": [1]})))
    assert repr(json.loads(out)) == repr({name: fields[name] for name in json.loads(out)}) and len(
        json.loads(out)
    ) == len(fields)


def test_a_stream_that_is_null_is_none_and_costs_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields, "_named_slowly", None)
    assert named(b'{"model":"m","stream":null}') == Named("m", False)


def test_what_only_a_lenient_reader_reads_is_not_read_when_it_is_large() -> None:
    assert named(b'{"model":"m","x":NaN}') == Named("m", False)
    with pytest.raises(NotReadable, match="too large"):
        named(b'{"model":"m","x":[NaN,"' + b"x" * fields.SLOWLY_BYTES + b'"]}')


def test_a_disk_that_fills_up_is_told_and_nothing_is_left_out() -> None:
    class Short(io.RawIOBase):
        """Takes less than it is given, and then nothing."""

        room = 150

        def write(self, data: Any) -> int:
            if not self.room:
                raise OSError(errno.ENOSPC, "No space left on device")
            taken = min(len(data), 70, self.room)
            self.room -= taken
            return taken

    short = Short()
    body._write_all(short, b"x" * 100)
    assert short.room == 50
    with pytest.raises(OSError, match="No space left"):
        body._write_all(short, b"x" * 100)
