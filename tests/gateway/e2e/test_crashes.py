"""Models and relays that die. Each test has a model of its own: what a model has suffered is remembered."""

import os
import signal
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio
from tests.gateway.e2e.rig import Rig, model, rig

from ostler.gateway import control

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    models = {name: model(name) for name in ("open", "broken-off", "deadly", "kept", "other", "idle")}
    models["counted"] = model("counted", concurrency=4)
    models["looping"] = {"cmd": ["sh", "-c", "echo out of memory; exit 1"]}
    async with rig(tmp_path_factory.mktemp("crashes"), models, scheduler="fifo") as made:
        yield made


@pytest.mark.parametrize("name", ["open", "counted"], ids=["through an open gate", "granted"])
async def test_a_model_that_dies_is_started_again_for_who_had_no_byte(yard: Rig, name: str) -> None:
    await yard.answered(yard.call(name, "first"))
    calls = [yard.hold(name, "1"), yard.hold(name, "2")]
    await yard.stage.asked("1")
    await yard.stage.asked("2")
    os.kill(yard.stage.pid(name), signal.SIGKILL)
    for tag in ("1", "2"):
        (await yard.stage.asked(tag, times=2)).end(f"after all {tag}")
    assert [answer.text for answer in await yard.answered(*calls)] == ["after all 1", "after all 2"]
    assert yard.stage.loads(name) == 2


async def test_who_had_a_byte_is_told_and_not_served_twice(yard: Rig) -> None:
    async with yard.stream("broken-off", "1") as answer:
        held = await yard.stage.asked("1")
        held.say("half of it")
        assert b"half of it" in await answer.content.readline()
        os.kill(yard.stage.pid("broken-off"), signal.SIGKILL)
        assert b'"error"' in await answer.content.read()
    await yard.is_state("broken-off", "stopped")
    assert yard.stage.loads("broken-off") == 1


async def test_a_request_that_kills_its_model_twice_is_refused(yard: Rig) -> None:
    call = yard.hold("deadly", "1")
    await yard.stage.asked("1")
    os.kill(yard.stage.pid("deadly"), signal.SIGKILL)
    await yard.stage.asked("1", times=2)
    os.kill(yard.stage.pid("deadly"), signal.SIGKILL)
    (answer,) = await yard.answered(call)
    assert answer.status == 502


async def test_a_model_that_crashes_again_and_again_is_left_alone_for_a_while_and_says_so(yard: Rig) -> None:
    (first,) = await yard.answered(yard.call("looping"))
    (second,) = await yard.answered(yard.call("looping"))
    (third,) = await yard.answered(yard.call("looping"))
    assert [one.status for one in (first, second, third)] == [502] * 3
    assert "out of memory" in third.message
    assert "2 times in a row" in third.message and "tried again in" in third.message
    assert int(third.headers["Retry-After"]) >= 1


async def test_a_relay_that_is_killed_is_started_again_and_the_models_stay_loaded(yard: Rig) -> None:
    await yard.answered(yard.call("kept", "1"))
    serving, waiting = yard.hold("kept", "2"), yard.call("other", "3")
    await yard.stage.asked("2")
    await yard.queued("other")
    process = yard.gateway.link._process
    assert process is not None
    yard.gateway.listens_on = None
    process.kill()
    for call in (serving, waiting):
        with pytest.raises(aiohttp.ClientError):
            await call
    await yard.until(lambda: yard.gateway.listens_on, "the next relay listens")
    assert await yard.queue() == []
    (answer,) = await yard.answered(yard.call("kept", "4"))
    assert answer.status == 200
    yard.heard.clear()
    await yard.answered(yard.call("kept", "5"))
    assert not any(isinstance(one, control.Arrived) for one in yard.heard)
    assert yard.stage.loads("kept") == 1
    assert yard.stage.loads("other") == 0


async def test_a_model_that_dies_idle_is_loaded_anew_for_the_next_caller(yard: Rig) -> None:
    await yard.answered(yard.call("idle", "1"))
    os.kill(yard.stage.pid("idle"), signal.SIGKILL)
    await yard.is_state("idle", "stopped")
    (answer,) = await yard.answered(yard.call("idle", "2"))
    assert answer.status == 200
