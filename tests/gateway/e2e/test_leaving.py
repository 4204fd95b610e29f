"""Callers who hang up."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.gateway.e2e.running_gateway import RunningGateway, first_data, model, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningGateway]:
    models = [model("a"), model("b"), model("slow", "slow"), model("stubborn", on_client_abort="drain")]
    async with running_gateway(tmp_path_factory.mktemp("leaving"), models, scheduler="fifo") as made:
        yield made


async def test_who_leaves_the_queue_gives_up_its_place_and_nothing_is_loaded_for_it(gateway: RunningGateway) -> None:
    serving = gateway.hold("a", "1")
    held = await gateway.servers.asked("1")
    leaving = gateway.call("b", "2")
    await gateway.queued("b")
    leaving.cancel()
    await gateway.queued()
    held.end()
    await gateway.answered(serving)
    await gateway.answered(gateway.call("a", "3"))
    assert gateway.servers.diary() == ["load a", "a 1", "a 3"]


async def test_who_leaves_a_stream_has_its_upstream_request_cancelled(gateway: RunningGateway) -> None:
    answer = await gateway.stream("a", "1")
    held = await gateway.servers.asked("1")
    held.say("begun")
    assert b"begun" in await first_data(answer)
    answer.close()
    await gateway.servers.left(held)


async def test_who_leaves_before_the_first_byte_has_its_upstream_request_cancelled(gateway: RunningGateway) -> None:
    leaving = gateway.hold("a", "1")
    held = await gateway.servers.asked("1")
    leaving.cancel()
    await gateway.servers.left(held)
    waiting = gateway.call("b", "2")
    assert (await gateway.answered(waiting))[0].status == 200


async def test_a_model_that_must_end_its_answers_is_let_end_them(gateway: RunningGateway) -> None:
    answer = await gateway.stream("stubborn", "1")
    held = await gateway.servers.asked("1")
    held.say("begun")
    await first_data(answer)
    answer.close()
    waiting = gateway.call("b", "2")
    await gateway.queued("b")
    held.end("nobody hears this")
    assert (await gateway.answered(waiting))[0].status == 200
    assert not any(news["event"] == "left" for news in gateway.servers.news)


async def test_a_streaming_caller_is_told_that_its_model_loads_and_then_what_it_says(gateway: RunningGateway) -> None:
    async with gateway.stream("slow", "1") as answer:
        await gateway.servers.began("slow")
        assert (await answer.content.readline()).startswith(b": loading")
        gateway.servers.heal("slow")
        (await gateway.servers.asked("1")).end("at last")
        assert b"at last" in await answer.content.read()


async def test_an_error_after_the_first_comment_is_an_event(gateway: RunningGateway) -> None:
    async with gateway.stream("slow", "1") as answer:
        await gateway.servers.began("slow")
        assert (await answer.content.readline()).startswith(b": loading")
        await gateway.ask("POST", "/api/models/slow/unload")
        assert b'"code":"unloaded"' in (await answer.content.read()).replace(b": ", b":")
