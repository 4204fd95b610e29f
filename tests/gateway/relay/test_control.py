"""The control link's bytes."""

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ostler.gateway import control
from ostler.gateway.control import Arrived, Close, Done, Open, Setup, frame, frames_to_hub, frames_to_relay

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
TO_RELAY: list[control.ToRelay] = [
    Setup(
        {"m": control.ModelSetup(aliases=["n"], document={"x": [1, None]})},
        [control.KeySetup("00", "u", "user")],
        5,
        "v",
    ),
    Open("i", "m", "h", 1),
    Open("i", "m", "h", 1, 0),
    Close("i"),
    control.Gone("i"),
    control.Grant(1, "i", "h", 2),
    control.Grant(1, "p", "h", 443, control.Way(tls=True, prefix="/x", api_key="k")),
    control.NoTunnel("k", "…"),
    control.Refuse(1, 429, "queue_full", "…", 1.5),
    control.Tell(1, "ä"),
    control.Abort(1),
    control.Answer(1, 200, [("A", "b")], b"\0", True),
    control.Stop(3.0),
]
TO_HUB: list[control.ToHub] = [
    control.Hello("1", "::1", 7601),
    Arrived(1, "m", "/v1", True, "u", 1.5),
    control.Cancelled(1),
    control.Began(1),
    Done(1, "i", "m", 200, "", 3, 4, 0.1, 0.2, 5, 6, False, "u", False),
    control.Drained("i"),
    control.Used("i", 1, 2),
    control.Worked("i", {"ann": 1.5}, True),
    control.NeedTunnel("i", "k"),
    control.Asked(1, "GET", "/running", "", [("A", "b")], b"", "u", "user"),
]


@PATIENT
@given(st.lists(st.sampled_from(TO_RELAY)), st.lists(st.sampled_from(TO_HUB)), st.integers(1, 50))
def test_messages_come_out_as_they_went_in_however_the_bytes_are_cut(
    to_relay: list[control.ToRelay], to_hub: list[control.ToHub], cut: int
) -> None:
    for frames, messages in ((frames_to_relay(), to_relay), (frames_to_hub(), to_hub)):
        data = frame(messages[:2]) + frame(messages[2:])
        heard = [one for at in range(0, len(data), cut) for one in frames.feed(data[at : at + cut])]  # type: ignore[attr-defined]
        assert heard == messages


def test_every_message_is_among_those_that_are_tried() -> None:
    assert {type(one) for one in TO_RELAY} == set(control.ToRelay.__args__)  # type: ignore[attr-defined]
    assert {type(one) for one in TO_HUB} == set(control.ToHub.__args__)  # type: ignore[attr-defined]


def test_a_newer_sender_may_add_fields_and_an_older_one_lack_those_with_a_default() -> None:
    body = msgspec.msgpack.encode([["Open", "i", "m", "h", 1, 5, [True], False, "something new"], ["Stop"]])
    heard = frames_to_relay().feed(len(body).to_bytes(4, "big") + body)
    assert heard == [Open("i", "m", "h", 1, 5, control.Way(tunnel=True)), control.Stop()]


def test_bytes_that_are_no_messages_are_refused() -> None:
    with pytest.raises(msgspec.DecodeError):
        frames_to_relay().feed(b"\0\0\0\1\xff")
