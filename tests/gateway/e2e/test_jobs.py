"""Models and jobs on one ledger, which every turn is checked."""

import os
import signal
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio
from tests.gateway.e2e.running_gateway import RunningGateway, model, running_gateway

from ostler.gateway import control
from ostler.gateway.core import machine

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningGateway]:
    clinging = model("clinging", cmd_stop=["sleep", "600"], stop_timeout=600)
    models = [model("a"), model("b"), model("kept", pinned=True), clinging, model("vast", gpus=9)]
    async with running_gateway(tmp_path_factory.mktemp("jobs"), models, scheduler="fifo") as made:
        yield made


async def test_a_job_gets_the_gpu_of_an_idle_model(gateway: RunningGateway) -> None:
    await gateway.answered(gateway.call("a", "1"))
    job = await gateway.submit("train", "true", gpu_count=1)
    await gateway.job_is(job, "succeeded")
    await gateway.is_state("a", "stopped")
    (again,) = await gateway.answered(gateway.call("a", "2"))
    assert again.status == 200
    assert gateway.servers.loads("a") == 2


async def test_why_of_a_job_beside_an_idle_model_says_that_its_room_is_free_at_once(gateway: RunningGateway) -> None:
    await gateway.answered(gateway.call("a", "1"))
    other = await gateway.submit("other", "sleep", "600", min_vram_gb=8)
    await gateway.job_is(other, "running")
    model_job = gateway.instance("a").job_id

    async def is_priced() -> bool:
        return any(
            held.task_id == model_job and held.price_s is not None for held in gateway.hub.loop.fleet.held.values()
        )

    await gateway.until(is_priced, "the idle model has a price")
    job = await gateway.submit("train", "true", gpu_count=1)
    why = await gateway.ask_hub("GET", f"/v1/jobs/{job}/why")
    assert why.status == 200, why.body
    until = {holder["job"]: holder["until"] for holder in why.json["holders"]}
    assert until[model_job] == {"low_s": 0.0, "likely_s": 0.0, "high_s": 0.0}
    assert until[other]["low_s"] < until[other]["high_s"]
    for one in (job, other):
        assert (await gateway.ask_hub("POST", f"/v1/jobs/{one}/cancel")).status == 200
    await gateway.job_is(other, "cancelled")


async def test_a_job_never_takes_the_gpu_of_a_model_that_serves(gateway: RunningGateway) -> None:
    serving = gateway.hold("a", "1")
    held = await gateway.servers.asked("1")
    job = await gateway.submit("train", "true", gpu_count=1)
    also = gateway.hold("a", "2")
    (await gateway.servers.asked("2")).end("two")
    await gateway.answered(also)
    assert (await gateway.job(job))["state"] == "pending"
    held.end("one")
    (answer,) = await gateway.answered(serving)
    assert answer.text == "one"
    await gateway.job_is(job, "succeeded")


async def test_a_model_is_idle_whoever_was_served_last(gateway: RunningGateway) -> None:
    """One that was asked for outlives one that was not, of which the hub has heard before."""
    serving = gateway.hold("a", "1")
    held = await gateway.servers.asked("1")
    also = gateway.hold("a", "2")
    (await gateway.servers.asked("2")).end("two")
    await gateway.answered(also)
    used = [control.Used(gateway.instance("a").job_id, in_flight=1, served=1)]
    await gateway.until(lambda: [one for one in gateway.heard if one in used], "the hub knows that one is still there")
    held.end("one")
    await gateway.answered(serving)
    job = await gateway.submit("train", "true", gpu_count=1)
    await gateway.job_is(job, "succeeded")


async def test_a_model_waits_for_the_job_that_holds_its_room_and_says_for_which(gateway: RunningGateway) -> None:
    job = await gateway.submit("train", "sleep", "600", gpu_count=1)
    await gateway.job_is(job, "running")
    waiting = gateway.call("a", "1")
    await gateway.queued("a")
    (place,) = await gateway.queue()
    assert job in place["why"]
    assert (await gateway.job(job))["state"] == "running"
    assert (await gateway.ask_hub("POST", f"/v1/jobs/{job}/cancel")).status in (200, 202)
    (answer,) = await gateway.answered(waiting)
    assert answer.status == 200


async def test_a_model_that_no_machine_could_hold_is_refused_after_a_while(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = gateway.call("vast", "1")
    await gateway.queued("vast")
    (place,) = await gateway.queue()
    assert place["why"].startswith("No machine that takes work could hold 'vast'")
    monkeypatch.setattr(machine, "NOWHERE_S", 0.0)  # seen when something happens next
    (other,) = await gateway.answered(gateway.call("a", "2"))
    (answer,) = await gateway.answered(waiting)
    assert (other.status, answer.status, answer.json["error"]["code"]) == (200, 503, "no_machine")


async def test_a_pinned_model_is_not_taken_for_a_job(gateway: RunningGateway) -> None:
    await gateway.answered(gateway.call("kept", "1"))
    instance = gateway.instance("kept")
    job = await gateway.submit("train", "true", gpu_count=1)
    first_look = instance.idle_timer
    await gateway.until(lambda: instance.idle_timer is not first_look, "it has been looked at")
    assert (await gateway.job(job))["state"] == "pending"
    assert await gateway.state_of("kept") == "ready"
    await gateway.ask("POST", "/api/models/kept/unload")
    await gateway.job_is(job, "succeeded")


async def test_what_an_evicted_model_leaves_is_the_next_models_and_not_a_jobs(gateway: RunningGateway) -> None:
    serving = gateway.hold("a", "1")
    held = await gateway.servers.asked("1")
    job = await gateway.submit("train", "true", gpu_count=1)
    waiting = gateway.hold("b", "2")
    await gateway.queued("b")
    held.end()
    next_one = await gateway.servers.asked("2")
    assert (await gateway.job(job))["state"] == "pending"
    next_one.end()
    await gateway.answered(serving, waiting)
    await gateway.job_is(job, "succeeded")


async def test_the_load_of_a_model_says_whose_end_it_waits_for(gateway: RunningGateway) -> None:
    await gateway.answered(gateway.call("clinging", "1"))
    leaving = gateway.instance("clinging").job_id
    waiting = gateway.call("b", "2")
    await gateway.until(lambda: gateway.hub.gateway.instances.of("b"), "the load of b has begun")

    async def is_said() -> bool:
        told = (await gateway.ask_hub("GET", f"/v1/jobs/{gateway.instance('b').job_id}/why")).json
        return told["state"] == "pending" and leaving in told["summary"]

    await gateway.until(is_said, "why names the process that leaves")
    os.kill(gateway.servers.pid("clinging"), signal.SIGKILL)
    (answer,) = await gateway.answered(waiting)
    assert answer.status == 200


async def test_a_job_that_waits_for_an_idle_model_says_so_and_the_room_goes_from_one_to_the_other(
    gateway: RunningGateway,
) -> None:
    await gateway.answered(gateway.call("clinging", "1"))
    model_job = gateway.instance("clinging").job_id
    job = await gateway.submit("train", "true", gpu_count=1)

    async def is_said() -> bool:
        told = (await gateway.ask_hub("GET", f"/v1/jobs/{job}/why")).json
        return f"room is being made for it: {model_job}" in told["summary"]

    await gateway.until(is_said, "why names the model")
    waiting = gateway.call("a", "2")
    await gateway.queued("a")
    os.kill(gateway.servers.pid("clinging"), signal.SIGKILL)
    await gateway.job_is(job, "succeeded")
    (answer,) = await gateway.answered(waiting)
    assert answer.status == 200


async def test_a_model_that_is_pinned_after_its_room_was_offered_keeps_it_until_it_is_unpinned(
    gateway: RunningGateway,
) -> None:
    await gateway.answered(gateway.call("a", "1"))
    instance = gateway.instance("a")
    await gateway.until(lambda: instance.priced, "the room of a is offered")
    await gateway.ask_hub("POST", "/v1/models/a/pin")
    job = await gateway.submit("train", "true", gpu_count=1)
    first_look = instance.idle_timer
    await gateway.until(lambda: instance.idle_timer is not first_look, "it has been looked at since")
    assert ((await gateway.job(job))["state"], instance.phase, instance.priced) == ("pending", "ready", False)
    await gateway.ask_hub("POST", "/v1/models/a/unpin")
    await gateway.job_is(job, "succeeded")


async def test_a_job_gets_the_gpu_of_a_model_whose_callers_are_gone_with_the_relay(gateway: RunningGateway) -> None:
    await gateway.answered(gateway.call("a", "1"))
    instance = gateway.instance("a")
    await gateway.until(lambda: instance.gate == "open", "the gate is open")
    serving = gateway.hold("a", "2")
    await gateway.servers.asked("2")
    await gateway.until(
        lambda: instance.passing and instance.idle_timer is None, "it has been looked at while it served"
    )
    process = gateway.hub.gateway.link._process
    assert process is not None
    gateway.hub.gateway.listens_on = None
    process.kill()
    with pytest.raises(aiohttp.ClientError):
        await serving
    job = await gateway.submit("train", "true", gpu_count=1)
    await gateway.job_is(job, "succeeded")
    await gateway.until(lambda: gateway.hub.gateway.listens_on, "the next relay listens")
