"""Models and relays that die. Each test has a model of its own: what a model has suffered is remembered."""

import os
import signal
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio
from tests.gateway.e2e.running_gateway import RunningGateway, first_data, model, running_gateway

from ostler.gateway import control

SECRET = "hf_planted_in_the_log"
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningGateway]:
    models = {name: model(name) for name in ("open", "broken-off", "deadly", "kept", "other", "idle")}
    models["counted"] = model("counted", concurrency=4)
    models["looping"] = {"cmd": ["sh", "-c", f"echo {SECRET}; exit 1"]}
    async with running_gateway(tmp_path_factory.mktemp("crashes"), models, scheduler="fifo") as made:
        yield made


@pytest.mark.parametrize("name", ["open", "counted"], ids=["through an open gate", "granted"])
async def test_a_model_that_dies_is_started_again_for_who_had_no_byte(gateway: RunningGateway, name: str) -> None:
    await gateway.answered(gateway.call(name, "first"))
    calls = [gateway.hold(name, "1"), gateway.hold(name, "2")]
    await gateway.servers.asked("1")
    await gateway.servers.asked("2")
    os.kill(gateway.servers.pid(name), signal.SIGKILL)
    for tag in ("1", "2"):
        (await gateway.servers.asked(tag, times=2)).end(f"after all {tag}")
    assert [answer.text for answer in await gateway.answered(*calls)] == ["after all 1", "after all 2"]
    assert gateway.servers.loads(name) == 2


async def test_who_had_a_byte_is_told_and_not_served_twice(gateway: RunningGateway) -> None:
    async with gateway.stream("broken-off", "1") as answer:
        held = await gateway.servers.asked("1")
        held.say("half of it")
        assert b"half of it" in await first_data(answer)
        os.kill(gateway.servers.pid("broken-off"), signal.SIGKILL)
        assert b'"error"' in await answer.content.read()
    await gateway.is_state("broken-off", "stopped")
    assert gateway.servers.loads("broken-off") == 1


async def test_a_request_that_kills_its_model_twice_is_refused(gateway: RunningGateway) -> None:
    call = gateway.hold("deadly", "1")
    await gateway.servers.asked("1")
    os.kill(gateway.servers.pid("deadly"), signal.SIGKILL)
    await gateway.servers.asked("1", times=2)
    os.kill(gateway.servers.pid("deadly"), signal.SIGKILL)
    (answer,) = await gateway.answered(call)
    assert answer.status == 502


async def test_a_model_that_crashes_again_and_again_is_left_alone_for_a_while_and_says_so(
    gateway: RunningGateway,
) -> None:
    (first,) = await gateway.answered(gateway.call("looping"))
    (second,) = await gateway.answered(gateway.call("looping"))
    (third,) = await gateway.answered(gateway.call("looping"))
    assert [one.status for one in (first, second, third)] == [502] * 3
    assert "exit code 1" in third.message and "ostler models logs looping" in third.message
    assert "2 times in a row" in third.message and "tried again in" in third.message
    assert int(third.headers["Retry-After"]) >= 1
    for where in (
        gateway.ask("GET", "/running"),
        gateway.ask("GET", "/api/activity"),
        gateway.ask("GET", "/api/queue"),
    ):
        assert SECRET.encode() not in (found := (await where).body), found.decode()
    for path in ("/v1/models", "/v1/models/activity", "/metrics"):
        assert SECRET.encode() not in (await gateway.ask_hub("GET", path)).body
    assert not [one for one in (first, second, third) if SECRET.encode() in one.body]


async def test_a_relay_that_is_killed_is_started_again_and_the_models_stay_loaded(gateway: RunningGateway) -> None:
    await gateway.answered(gateway.call("kept", "1"))
    serving, waiting = gateway.hold("kept", "2"), gateway.call("other", "3")
    await gateway.servers.asked("2")
    await gateway.queued("other")
    process = gateway.hub.gateway.link._process
    assert process is not None
    gateway.hub.gateway.listens_on = None
    process.kill()
    for call in (serving, waiting):
        with pytest.raises(aiohttp.ClientError):
            await call
    await gateway.until(lambda: gateway.hub.gateway.listens_on, "the next relay listens")
    assert await gateway.queue() == []
    (answer,) = await gateway.answered(gateway.call("kept", "4"))
    assert answer.status == 200
    gateway.heard.clear()
    await gateway.answered(gateway.call("kept", "5"))
    assert not any(isinstance(one, control.Arrived) for one in gateway.heard)
    assert gateway.servers.loads("kept") == 1
    assert gateway.servers.loads("other") == 0


async def test_a_model_that_dies_idle_is_loaded_anew_for_the_next_caller(gateway: RunningGateway) -> None:
    await gateway.answered(gateway.call("idle", "1"))
    os.kill(gateway.servers.pid("idle"), signal.SIGKILL)
    await gateway.is_state("idle", "stopped")
    (answer,) = await gateway.answered(gateway.call("idle", "2"))
    assert answer.status == 200
