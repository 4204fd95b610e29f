"""Callers who hang up."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.gateway.e2e.rig import Rig, model, rig

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    models = [model("a"), model("b"), model("slow", "slow"), model("stubborn", on_client_abort="drain")]
    async with rig(tmp_path_factory.mktemp("leaving"), models, scheduler="fifo") as made:
        yield made


async def test_who_leaves_the_queue_gives_up_its_place_and_nothing_is_loaded_for_it(yard: Rig) -> None:
    serving = yard.hold("a", "1")
    held = await yard.stage.asked("1")
    leaving = yard.call("b", "2")
    await yard.queued("b")
    leaving.cancel()
    await yard.queued()
    held.end()
    await yard.answered(serving)
    await yard.answered(yard.call("a", "3"))
    assert yard.stage.diary() == ["load a", "a 1", "a 3"]


async def test_who_leaves_a_stream_has_its_upstream_request_cancelled(yard: Rig) -> None:
    answer = await yard.stream("a", "1")
    held = await yard.stage.asked("1")
    held.say("begun")
    assert b"begun" in await answer.content.readline()
    answer.close()
    await yard.stage.left(held)


async def test_who_leaves_before_the_first_byte_has_its_upstream_request_cancelled(yard: Rig) -> None:
    leaving = yard.hold("a", "1")
    held = await yard.stage.asked("1")
    leaving.cancel()
    await yard.stage.left(held)
    waiting = yard.call("b", "2")
    assert (await yard.answered(waiting))[0].status == 200


async def test_a_model_that_must_end_its_answers_is_let_end_them(yard: Rig) -> None:
    answer = await yard.stream("stubborn", "1")
    held = await yard.stage.asked("1")
    held.say("begun")
    await answer.content.readline()
    answer.close()
    waiting = yard.call("b", "2")
    await yard.queued("b")
    held.end("nobody hears this")
    assert (await yard.answered(waiting))[0].status == 200
    assert not any(news["event"] == "left" for news in yard.stage.news)


async def test_a_streaming_caller_is_told_that_its_model_loads_and_then_what_it_says(yard: Rig) -> None:
    async with yard.stream("slow", "1") as answer:
        await yard.stage.began("slow")
        assert (await answer.content.readline()).startswith(b": loading")
        yard.stage.heal("slow")
        (await yard.stage.asked("1")).end("at last")
        assert b"at last" in await answer.content.read()


async def test_an_error_after_the_first_comment_is_an_event(yard: Rig) -> None:
    async with yard.stream("slow", "1") as answer:
        await yard.stage.began("slow")
        assert (await answer.content.readline()).startswith(b": loading")
        await yard.ask("POST", "/api/models/slow/unload")
        assert b'"code":"unloaded"' in (await answer.content.read()).replace(b": ", b":")
