"""Models and jobs on one ledger, which every turn is checked."""

import os
import signal
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio
from tests.gateway.e2e.rig import Rig, model, rig

from ostler.gateway import control
from ostler.gateway.core import machine

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    clinging = model("clinging", cmd_stop=["sleep", "600"], stop_timeout=600)
    models = [model("a"), model("b"), model("kept", pinned=True), clinging, model("vast", gpus=9)]
    async with rig(tmp_path_factory.mktemp("jobs"), models, scheduler="fifo") as made:
        yield made


async def test_a_job_gets_the_gpu_of_an_idle_model(yard: Rig) -> None:
    await yard.answered(yard.call("a", "1"))
    job = await yard.submit("train", "true", gpu_count=1)
    await yard.job_is(job, "succeeded")
    await yard.is_state("a", "stopped")
    (again,) = await yard.answered(yard.call("a", "2"))
    assert again.status == 200
    assert yard.stage.loads("a") == 2


async def test_a_job_never_takes_the_gpu_of_a_model_that_serves(yard: Rig) -> None:
    serving = yard.hold("a", "1")
    held = await yard.stage.asked("1")
    job = await yard.submit("train", "true", gpu_count=1)
    also = yard.hold("a", "2")
    (await yard.stage.asked("2")).end("two")
    await yard.answered(also)
    assert (await yard.job(job))["state"] == "pending"
    held.end("one")
    (answer,) = await yard.answered(serving)
    assert answer.text == "one"
    await yard.job_is(job, "succeeded")


async def test_a_model_is_idle_whoever_was_served_last(yard: Rig) -> None:
    """One that was asked for outlives one that was not, of which the hub has heard before."""
    serving = yard.hold("a", "1")
    held = await yard.stage.asked("1")
    also = yard.hold("a", "2")
    (await yard.stage.asked("2")).end("two")
    await yard.answered(also)
    used = [control.Used(yard.instance("a").job_id, in_flight=1, served=1)]
    await yard.until(lambda: [one for one in yard.heard if one in used], "the hub knows that one is still there")
    held.end("one")
    await yard.answered(serving)
    job = await yard.submit("train", "true", gpu_count=1)
    await yard.job_is(job, "succeeded")


async def test_a_model_waits_for_the_job_that_holds_its_room_and_says_for_which(yard: Rig) -> None:
    job = await yard.submit("train", "sleep", "600", gpu_count=1)
    await yard.job_is(job, "running")
    waiting = yard.call("a", "1")
    await yard.queued("a")
    (place,) = await yard.queue()
    assert job in place["why"]
    assert (await yard.job(job))["state"] == "running"
    assert (await yard.ask_hub("POST", f"/v1/jobs/{job}/cancel")).status in (200, 202)
    (answer,) = await yard.answered(waiting)
    assert answer.status == 200


async def test_a_model_that_no_machine_could_hold_is_refused_after_a_while(
    yard: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = yard.call("vast", "1")
    await yard.queued("vast")
    (place,) = await yard.queue()
    assert place["why"].startswith("No machine that takes work could hold 'vast'")
    monkeypatch.setattr(machine, "NOWHERE_S", 0.0)  # seen when something happens next
    (other,) = await yard.answered(yard.call("a", "2"))
    (answer,) = await yard.answered(waiting)
    assert (other.status, answer.status, answer.json["error"]["code"]) == (200, 503, "no_machine")


async def test_a_pinned_model_is_not_taken_for_a_job(yard: Rig) -> None:
    await yard.answered(yard.call("kept", "1"))
    instance = yard.instance("kept")
    job = await yard.submit("train", "true", gpu_count=1)
    first_look = instance.idle_timer
    await yard.until(lambda: instance.idle_timer is not first_look, "it has been looked at")
    assert (await yard.job(job))["state"] == "pending"
    assert await yard.state_of("kept") == "ready"
    await yard.ask("POST", "/api/models/kept/unload")
    await yard.job_is(job, "succeeded")


async def test_what_an_evicted_model_leaves_is_the_next_models_and_not_a_jobs(yard: Rig) -> None:
    serving = yard.hold("a", "1")
    held = await yard.stage.asked("1")
    job = await yard.submit("train", "true", gpu_count=1)
    waiting = yard.hold("b", "2")
    await yard.queued("b")
    held.end()
    next_one = await yard.stage.asked("2")
    assert (await yard.job(job))["state"] == "pending"
    next_one.end()
    await yard.answered(serving, waiting)
    await yard.job_is(job, "succeeded")


async def test_the_load_of_a_model_says_whose_end_it_waits_for(yard: Rig) -> None:
    await yard.answered(yard.call("clinging", "1"))
    leaving = yard.instance("clinging").job_id
    waiting = yard.call("b", "2")
    await yard.until(lambda: yard.gateway.instances.of("b"), "the load of b has begun")

    async def is_said() -> bool:
        told = (await yard.ask_hub("GET", f"/v1/jobs/{yard.instance('b').job_id}/why")).json
        return told["state"] == "pending" and leaving in told["summary"]

    await yard.until(is_said, "why names the process that leaves")
    os.kill(yard.stage.pid("clinging"), signal.SIGKILL)
    (answer,) = await yard.answered(waiting)
    assert answer.status == 200


async def test_a_job_that_waits_for_an_idle_model_says_so_and_the_room_goes_from_one_to_the_other(yard: Rig) -> None:
    await yard.answered(yard.call("clinging", "1"))
    model_job = yard.instance("clinging").job_id
    job = await yard.submit("train", "true", gpu_count=1)

    async def is_said() -> bool:
        told = (await yard.ask_hub("GET", f"/v1/jobs/{job}/why")).json
        return f"room is being made for it: {model_job}" in told["summary"]

    await yard.until(is_said, "why names the model")
    waiting = yard.call("a", "2")
    await yard.queued("a")
    os.kill(yard.stage.pid("clinging"), signal.SIGKILL)
    await yard.job_is(job, "succeeded")
    (answer,) = await yard.answered(waiting)
    assert answer.status == 200


async def test_a_model_that_is_pinned_after_its_room_was_offered_keeps_it_until_it_is_unpinned(yard: Rig) -> None:
    await yard.answered(yard.call("a", "1"))
    instance = yard.instance("a")
    await yard.until(lambda: instance.priced, "the room of a is offered")
    await yard.ask_hub("POST", "/v1/models/a/pin")
    job = await yard.submit("train", "true", gpu_count=1)
    first_look = instance.idle_timer
    await yard.until(lambda: instance.idle_timer is not first_look, "it has been looked at since")
    assert ((await yard.job(job))["state"], instance.phase, instance.priced) == ("pending", "ready", False)
    await yard.ask_hub("POST", "/v1/models/a/unpin")
    await yard.job_is(job, "succeeded")


async def test_a_job_gets_the_gpu_of_a_model_whose_callers_are_gone_with_the_relay(yard: Rig) -> None:
    await yard.answered(yard.call("a", "1"))
    instance = yard.instance("a")
    await yard.until(lambda: instance.gate == "open", "the gate is open")
    serving = yard.hold("a", "2")
    await yard.stage.asked("2")
    await yard.until(lambda: instance.passing and instance.idle_timer is None, "it has been looked at while it served")
    process = yard.gateway.link._process
    assert process is not None
    yard.gateway.listens_on = None
    process.kill()
    with pytest.raises(aiohttp.ClientError):
        await serving
    job = await yard.submit("train", "true", gpu_count=1)
    await yard.job_is(job, "succeeded")
    await yard.until(lambda: yard.gateway.listens_on, "the next relay listens")
