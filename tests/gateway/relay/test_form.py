"""The field `model` of a multipart form, and the bodies that are kept for it."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ostler.gateway.relay.body import Body, Spool
from ostler.gateway.relay.form import MAX_HEAD_BYTES, BadForm, ModelField, boundary_of
from ostler.gateway.relay.limits import Limits

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
B = b"----x1y2"


def part(name: str, value: bytes, filename: str = "", more: bytes = b"") -> bytes:
    file = f'; filename="{filename}"' if filename else ""
    return b'--%b\r\nContent-Disposition: form-data; name="%b"%b\r\n%b\r\n%b\r\n' % (
        B,
        name.encode(),
        file.encode(),
        more,
        value,
    )


END = b"--%b--\r\n" % B


def found(body: bytes, cut: int = 1 << 20) -> ModelField:
    field = ModelField(B)
    for at in range(0, len(body), cut):
        field.feed(body[at : at + cut])
    return field


@PATIENT
@given(
    st.lists(st.tuples(st.sampled_from(["file", "prompt", "models", "x"]), st.binary(max_size=60)), max_size=4),
    st.integers(0, 4),
    st.integers(1, 100),
)
def test_the_field_is_found_wherever_it_is_and_however_the_body_is_cut(
    others: list[tuple[str, bytes]], place: int, cut: int
) -> None:
    parts = [part(name, value, "f" if name == "file" else "") for name, value in others]
    parts.insert(place, part("model", b"whisper"))
    body = b"".join(parts) + END
    field = found(body, cut)
    assert field.value == b"whisper"
    assert body[field.start : field.end] == b"whisper"


def test_what_only_looks_like_the_field_is_not_it() -> None:
    inside = b'\r\n--%bx\r\nContent-Disposition: form-data; name="model"\r\n\r\nno\r\n' % B[:-1]
    body = part("file", inside, "a; name=model") + part("model", b"a file", "model.bin") + part("modeled", b"no") + END
    assert found(body).value is None


@pytest.mark.parametrize(
    "head",
    [
        b'content-disposition: form-data;name="model"',
        b"Content-Disposition: form-data; name=model",
        b'Content-Type: text/plain\r\nContent-Disposition: form-data; name="model"',
        b'CONTENT-DISPOSITION:form-data; x="a;b\\"c"; NAME="model"',
    ],
)
def test_the_field_is_known_by_any_correct_head(head: bytes) -> None:
    assert found(b"--%b\r\n%b\r\n\r\nm\r\n--%b--" % (B, head, B)).value == b"m"


def test_a_preamble_an_empty_value_and_an_epilogue_are_read_over() -> None:
    body = b"preamble\r\n" + part("empty", b"") + part("model", b"") + END + part("model", b"after the end")
    assert found(body, 3).value == b""


def test_a_form_that_names_two_models_is_refused() -> None:
    with pytest.raises(BadForm, match="two fields"):
        found(part("model", b"a") + part("model", b"b") + END)


@pytest.mark.parametrize("body", [part("model", b"x" * 5000), b"--%b\r\n" % B + b"X: y\r\n" * MAX_HEAD_BYTES])
def test_a_form_that_would_have_to_be_held_on_to_is_refused(body: bytes) -> None:
    with pytest.raises(BadForm, match="too long"):
        found(body, 1000)


@PATIENT
@given(st.binary(max_size=300), st.integers(1, 50))
def test_any_bytes_are_read_or_refused(body: bytes, cut: int) -> None:
    found(b"--" + B + body, cut)


def test_the_boundary_is_read_from_the_content_type() -> None:
    assert boundary_of(b"multipart/form-data; boundary=abc") == b"abc"
    assert boundary_of(b'multipart/form-data; charset=utf-8; BOUNDARY="a b"') == b"a b"
    with pytest.raises(BadForm):
        boundary_of(b"multipart/form-data")


@PATIENT
@given(st.lists(st.binary(min_size=1, max_size=400), min_size=1, max_size=12), st.data())
def test_a_body_is_the_same_in_memory_and_in_a_file(pieces: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(pieces)
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, len(whole)))
    for each in (10**6, 200):
        spool = Spool(Limits(memory_bytes=each))
        body = Body(spool)
        for piece in pieces:
            body.add(piece)
        assert body.in_file is (len(whole) > each)
        assert bytes(body.contents()) == whole
        body.splice(start, end, b"new")
        sent = b"".join(body.stream() if body.in_file else [body.data])
        assert sent == whole[:start] + b"new" + whole[end:] and body.size == len(sent)
        body.close()
        assert spool.held == 0


def test_when_all_bodies_together_are_large_the_next_one_goes_to_a_file(tmp_path: Path) -> None:
    spool = Spool(Limits(all_memory_bytes=1000), tmp_path)
    bodies = [Body(spool) for _ in range(10)]
    for body in bodies:
        body.add(b"x" * 300)
    assert [body.in_file for body in bodies[:3]] == [False] * 3 and all(body.in_file for body in bodies[3:])
    assert spool.held == 900
