"""WebSocket frames as the hub reads and writes them."""

import itertools
import tracemalloc

import pytest
from benchmarks.model_workers import masked

from ostler.wire import websocket
from ostler.wire.websocket import BINARY, CLOSE, PING, TEXT, Reader, Violation

LIMIT = 70_000
FIN = 0x80


def with_key(first: int, payload: bytes, key: bytes = b"\x37\xfa\x21\x3d") -> bytes:
    """A client's frame whose payload is really masked."""
    head = masked(first, payload)[: -len(payload) or None][:-4]
    return head + key + bytes(byte ^ mask for byte, mask in zip(payload, itertools.cycle(key), strict=False))


def read(*chunks: bytes) -> list[tuple[int, bytes]]:
    reader = Reader(LIMIT)
    return [message for chunk in chunks for message in reader.feed(chunk)]


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536, LIMIT])
def test_a_message_of_any_length_is_read_unmasked(size: int) -> None:
    payload = (b"ostler" * LIMIT)[:size]
    assert read(with_key(FIN | TEXT, payload)) == [(TEXT, payload)]


@pytest.mark.parametrize("cut", [1, 2, 3, 5, 7, 64])
def test_it_does_not_matter_how_the_bytes_come_in(cut: int) -> None:
    sent = (
        with_key(TEXT, b"one, ")
        + with_key(FIN | PING, b"?")
        + with_key(0, b"two, ")
        + with_key(FIN, b"three")
        + with_key(FIN | BINARY, b"\x00" * 300)
        + with_key(FIN | CLOSE, b"\x03\xe8bye")
    )
    chunks = [sent[at : at + cut] for at in range(0, len(sent), cut)]
    expected = [(PING, b"?"), (TEXT, b"one, two, three"), (BINARY, b"\x00" * 300), (CLOSE, b"\x03\xe8bye")]
    assert read(*chunks) == read(sent) == expected


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (bytes((FIN | TEXT, 2)) + b"hi", 1002),
        (with_key(FIN | 0x40 | TEXT, b"compressed"), 1002),
        (with_key(FIN | 0x3, b"of no kind"), 1002),
        (with_key(FIN | PING, b"x" * 126), 1002),
        (with_key(PING, b"in parts"), 1002),
        (with_key(FIN, b"goes on from nothing"), 1002),
        (with_key(TEXT, b"begun") + with_key(FIN | TEXT, b"and begun again"), 1002),
        (with_key(FIN | TEXT, b"x" * (LIMIT + 1))[:20], 1009),
        (with_key(TEXT, b"x" * LIMIT) + with_key(FIN, b"x")[:6], 1009),
        (bytes((FIN | TEXT, 0xFF)) + b"\xff" * 8, 1009),
    ],
)
def test_what_breaks_the_rules_is_refused_as_soon_as_its_head_is_there(sent: bytes, code: int) -> None:
    with pytest.raises(Violation) as refused:
        read(sent)
    assert refused.value.code == code


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
def test_what_the_hub_sends_says_how_long_it_is(size: int) -> None:
    frame = websocket.frame(TEXT, b"x" * size)
    extra = {126: 2, 127: 8}.get(frame[1], 0)
    told = int.from_bytes(frame[2 : 2 + extra], "big") if extra else frame[1]
    assert (frame[0], told, len(frame)) == (FIN | TEXT, size, 2 + extra + size)


def test_a_message_in_very_many_parts_takes_no_more_memory_than_its_bytes() -> None:
    reader = Reader(LIMIT)
    tracemalloc.start()
    try:
        for part in (with_key(TEXT, b"ab"), *[with_key(0, b"") * 1000] * 100, *[with_key(0, b"cd") * 1000] * 30):
            assert list(reader.feed(part)) == []
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 4 * LIMIT
    assert list(reader.feed(with_key(FIN, b""))) == [(TEXT, b"ab" + b"cd" * 30_000)]


@pytest.mark.parametrize(
    ("said", "answered"),
    [(b"", 1005), (b"\x03\xe8", 1000), (b"\x0f\xa0x", 4000), (b"\x03", 1002), (b"\x03\xed", 1002), (b"\0\0", 1002)],
)
def test_a_close_is_answered_with_a_code_that_may_be_said(said: bytes, answered: int) -> None:
    assert websocket.close_code(said) == answered


def test_a_reason_is_cut_to_what_a_close_may_carry_and_stays_text() -> None:
    frame = websocket.close_frame(1008, "ü" * 100)
    assert frame[1] == len(frame) - 2 <= 125
    assert frame[4:].decode() == "ü" * 61
    assert websocket.close_code(frame[2:]) == 1008
