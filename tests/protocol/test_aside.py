"""The thread beside the hub's loop, and who looks into the ledger in it."""

import asyncio
import threading

import pytest
from tests.protocol.test_leading import CoreLoop

from ostler.hub.aside import Aside


async def test_one_thing_is_done_after_another_and_each_is_told_what_came_of_it() -> None:
    aside = Aside("beside")
    done: list[int] = []

    def fail() -> None:
        raise ValueError("no")

    first, failed, last = aside.do(lambda: done.append(1)), aside.do(fail), aside.do(threading.current_thread)
    with pytest.raises(ValueError, match="no"):
        await failed
    assert (await first, done, (await last).name) == (None, [1], "beside")
    aside.close()


async def test_who_waits_no_more_holds_up_nobody_and_all_is_done_before_it_closes() -> None:
    aside = Aside("beside")
    begun, let_go = threading.Event(), threading.Event()
    done: list[str] = []

    def hold() -> None:
        begun.set()
        assert let_go.wait(60)
        done.append("held")

    held = aside.do(hold)
    await asyncio.to_thread(begun.wait, 20)
    held.cancel()
    following = aside.do(lambda: done.append("following"))
    let_go.set()
    await following
    left = aside.do(lambda: done.append("left"))
    aside.close()
    assert done == ["held", "following", "left"]
    await left


async def test_a_few_rows_are_looked_up_at_once_and_only_where_they_are_at_hand() -> None:
    loop = CoreLoop().loop
    here = threading.current_thread()
    assert loop.ledger.is_at_hand
    assert await loop.read(lambda _: threading.current_thread(), by_key=True) is here
    assert (await loop.read(lambda _: threading.current_thread())).name == "ledger-reader"
    loop.ledger.is_at_hand = False  # type: ignore[misc]
    assert (await loop.read(lambda _: threading.current_thread(), by_key=True)).name == "ledger-reader"
