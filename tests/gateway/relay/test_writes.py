"""Writes that wait for the end of the turn: in order, and never behind the end of their connection."""

import asyncio
import json
import socket

import pytest
from tests.gateway.relay.running_relay import CHAT, SECRET, Heard, Line, RunningRelay, chat

from ostler.gateway.relay.writes import MOST, SMALL_BYTES, Writes


async def ends() -> tuple[asyncio.Transport, socket.socket]:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
    return transport, theirs


def arrived(sock: socket.socket) -> bytes:
    """Without giving the loop a turn."""
    try:
        return sock.recv(2**20)
    except BlockingIOError:
        return b""


@pytest.fixture
async def two() -> tuple[tuple[asyncio.Transport, socket.socket], tuple[asyncio.Transport, socket.socket]]:
    return await ends(), await ends()


Two = tuple[tuple[asyncio.Transport, socket.socket], tuple[asyncio.Transport, socket.socket]]


async def test_with_few_requests_under_way_each_write_is_made_at_once(two: Two) -> None:
    (here, there), (other, beyond) = two
    writes = Writes(asyncio.get_running_loop(), 1)
    writes.under_way = 1
    writes.add(here, b"a")
    writes.add(other, b"b")
    assert (arrived(there), arrived(beyond)) == (b"a", b"b")


async def test_with_more_they_are_made_together_when_the_turn_is_over(two: Two) -> None:
    (here, there), (other, beyond) = two
    writes = Writes(asyncio.get_running_loop(), 1)
    writes.under_way = 2
    for transport, data in ((here, b"a"), (other, b"b"), (here, b"c")):
        writes.add(transport, data)
    writes.under_way = 0
    writes.add(here, b"d")
    assert (arrived(there), arrived(beyond)) == (b"", b"")
    await asyncio.sleep(0)
    assert (arrived(there), arrived(beyond)) == (b"acd", b"b")


async def test_what_is_large_goes_at_once_and_pushes_out_what_waits(two: Two) -> None:
    (here, there), (other, beyond) = two
    writes = Writes(asyncio.get_running_loop(), -1)
    writes.add(here, b"a")
    writes.add(other, b"b")
    writes.add(here, b"x" * (SMALL_BYTES + 1))
    assert (len(arrived(there)), arrived(beyond)) == (SMALL_BYTES + 2, b"b")


async def test_no_more_than_so_many_wait_and_none_for_who_has_gone(two: Two) -> None:
    (here, there), (other, beyond) = two
    writes = Writes(asyncio.get_running_loop(), -1)
    writes.add(other, b"b")
    other.abort()
    for _ in range(MOST):
        writes.add(here, b"a")
    assert (arrived(there), arrived(beyond)) == (b"a" * (MOST - 1), b"")


async def test_answers_that_wait_come_before_the_end_of_their_connection(relay: RunningRelay) -> None:
    async def answer(line: Line, heard: Heard) -> None:
        line.answer(json.dumps({"number": heard.json["number"]}).encode())

    relay.core.writes.few = -1
    await relay.serving(answer)
    client = await relay.client()
    sent = b""
    for number, model in enumerate(["small", "missing", "small", "missing", "small"]):
        body = json.dumps(chat(model, number=number)).encode()
        close = "Connection: close\r\n" if number == 4 else ""
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: {SECRET}\r\n{close}Content-Length: {len(body)}\r\n\r\n"
        sent += head.encode() + body
    client.send(sent)
    replies = [await client.reply() for _ in range(5)]
    assert [reply.status for reply in replies] == [200, 404, 200, 404, 200]
    assert [reply.json["number"] for reply in replies if reply.status == 200] == [0, 2, 4]
    assert await client.rest() == b""
