import asyncio
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from ostler.domain.hubs import Addresses
from ostler.wire.messages import BATCH_BYTES, MAX_FRAME_BYTES, packed
from ostler.worker.connection import FIRST_PAUSE_S, LONGEST_PAUSE_S, PATH, Connection, Pauses
from ostler.worker.credentials import Credentials


def test_the_first_try_comes_soon_and_none_waits_longer_than_agreed() -> None:
    pauses = Pauses(draw=lambda low, high: high)
    found = [pauses.next_s() for _ in range(10)]
    assert found[0] == FIRST_PAUSE_S
    assert found == sorted(found)
    assert found[-1] == LONGEST_PAUSE_S == 15.0
    pauses.start_over()
    assert pauses.next_s() == FIRST_PAUSE_S


def test_workers_do_not_all_come_back_at_once() -> None:
    pauses = [Pauses() for _ in range(50)]
    assert len({round(one.next_s(), 6) for one in pauses}) > 40


@pytest.mark.parametrize(("asked_s", "between"), [(1, (0, 1)), (7, (6, 7)), (3600, (14, 15))])
def test_a_hub_that_says_when_to_come_back_is_believed_within_bounds(
    asked_s: float, between: tuple[float, float]
) -> None:
    assert Pauses(draw=lambda low, high: low).next_s(asked_s) == between[0]
    assert Pauses(draw=lambda low, high: high).next_s(asked_s) == between[1]


def test_what_a_hub_asks_for_does_not_count_as_a_failed_try() -> None:
    pauses = Pauses(draw=lambda low, high: high)
    pauses.next_s(5)
    assert pauses.next_s() == FIRST_PAUSE_S


def test_messages_of_one_turn_share_a_frame_that_stays_below_the_limit() -> None:
    assert packed([]) == []
    assert packed([b"1"]) == [b"1"]
    assert packed([b"1", b"2"]) == [b"[1,2]"]
    large = b'"' + b"x" * (MAX_FRAME_BYTES // 3) + b'"'
    assert [frame.count(b"x") > 0 for frame in packed([large] * 3)] == [True, True, True]
    assert all(len(frame) <= MAX_FRAME_BYTES for frame in packed([large] * 3 + [b"1"] * 100))
    many = packed([b"1234567"] * BATCH_BYTES)
    assert max(map(len, many)) <= BATCH_BYTES + 2
    assert len(many) == 8


async def test_a_hub_with_too_many_at_its_door_is_asked_again_when_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    monkeypatch.setattr(Pauses, "next_s", lambda _, asked_s=0.0: asked.append(asked_s) or 0.0)
    refusals = [{"Retry-After": "7"}, {}, {"Retry-After": "soon"}]

    async def door(request: web.Request) -> web.StreamResponse:
        if refusals:
            return web.Response(status=503, headers=refusals.pop(0))
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.receive()
        return socket

    app = web.Application()
    app.router.add_get(PATH, door)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url, opened = f"http://127.0.0.1:{runner.addresses[0][1]}", asyncio.Event()
    async with aiohttp.ClientSession() as session:
        connection = Connection(
            session,
            Addresses(url),
            Credentials(tmp_path, url, "token"),
            on_open=opened.set,
            on_message=lambda _: None,
            on_lost=lambda: None,
        )
        running = asyncio.create_task(connection.run())
        await asyncio.wait_for(opened.wait(), 60)
        running.cancel()
    await runner.cleanup()
    assert asked == [7.0, 0.0, 0.0]
