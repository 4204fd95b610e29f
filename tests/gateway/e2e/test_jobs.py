"""Models and jobs on one ledger, which every turn is checked."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.gateway.e2e.rig import Rig, model, rig

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    models = [model("a"), model("b"), model("kept", pinned=True)]
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


async def test_a_pinned_model_is_not_taken_for_a_job(yard: Rig) -> None:
    await yard.answered(yard.call("kept", "1"))
    instance = yard.gateway.instances.current["kept"]
    job = await yard.submit("train", "true", gpu_count=1)
    await yard.until(lambda: instance.gate == "shut" and instance.idle_timer is None, "it has been looked at")
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
