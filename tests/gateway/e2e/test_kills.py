"""Hubs and workers that are killed: the models stay."""

import asyncio
from pathlib import Path

import psutil
from tests.gateway.e2e.rig import Apart, Rig, model, rig

from ostler.hub.gateway.instances import FOUND


async def test_a_killed_hub_leaves_its_models_running_and_the_next_one_comes_back_to_them(tmp_path: Path) -> None:
    async with rig(tmp_path, [model("a"), model("b")], kind=Apart, scheduler="fifo") as yard:
        assert isinstance(yard, Apart)
        await yard.answered(yard.call("a", "1"))
        await yard.kill_hub()
        assert psutil.pid_exists(yard.stage.pid("a"))
        await yard.start_hub()
        await yard.is_state("a", "ready")
        (answer,) = await yard.answered(yard.call("a", "2"))
        assert answer.status == 200
        assert yard.stage.diary() == ["load a", "a 1", "a 2"]
        (other,) = await yard.answered(yard.call("b", "3"))
        assert other.status == 200


async def test_a_killed_worker_comes_back_to_its_models(tmp_path: Path) -> None:
    async with rig(tmp_path, [model("a"), model("b")], kind=Apart, scheduler="fifo") as yard:
        assert isinstance(yard, Apart)
        await yard.answered(yard.call("a", "1"))
        yard.kill_worker()
        (meanwhile,) = await yard.answered(yard.call("a", "2"))
        assert meanwhile.status == 200
        yard.start_worker()
        await yard.until(yard.worker_is_there, "the worker is back")
        (answer,) = await yard.answered(yard.call("a", "3"))
        assert answer.status == 200
        assert yard.stage.loads() == 1
        (other,) = await yard.answered(yard.call("b", "4"))
        assert other.status == 200


async def test_a_restarted_hub_keeps_the_models_whose_recipe_is_the_same_and_stops_the_others(tmp_path: Path) -> None:
    models = [model("same", vram="2g"), model("changed", vram="2g"), model("removed", vram="2g")]
    async with rig(tmp_path, models, scheduler="fifo") as yard:
        await yard.answered(yard.call("same", "1"), yard.call("changed", "2"), yard.call("removed", "3"))
        await yard.stop_hub()
        yard.models["changed"] = model("changed", vram="3g")
        yard.models["same"] = model("same", vram="2g", aliases=["as-before"], ttl=3600)
        del yard.models["removed"]
        await yard.start_hub()
        await yard.is_state("same", "ready")
        answers = await yard.answered(yard.call("as-before", "4"), yard.call("changed", "5"), yard.call("removed", "6"))
        assert [answer.status for answer in answers] == [200, 200, 404]
        assert [yard.stage.loads(name) for name in ("same", "changed", "removed")] == [1, 2, 1]
        await yard.until(lambda: _running(yard) == {"same", "changed"}, "the removed one has ended")


async def test_a_process_that_was_found_and_is_not_well_is_unloaded_too(tmp_path: Path) -> None:
    async with rig(tmp_path, [model("ill", "slow", vram="2g"), model("well", vram="2g")], scheduler="fifo") as yard:
        yard.call("ill", "1")
        await yard.answered(yard.call("well", "2"))
        await yard.stage.began("ill")
        await yard.stop_hub()
        await yard.start_hub()
        await yard.is_state("well", "ready")
        assert yard.instance("ill").phase == FOUND and psutil.pid_exists(yard.stage.pid("ill"))
        answer = await yard.ask("POST", "/api/models/ill/unload")
        assert answer.json["unloaded"] == ["ill"] and _running(yard) == {"well"}
        await yard.until(lambda: not psutil.pid_exists(yard.stage.pid("ill")), "its process has ended")


async def test_a_hub_that_stops_tells_those_who_wait_and_lets_end_what_is_served(tmp_path: Path) -> None:
    models = [model("a", vram="2g"), model("slow", "slow", vram="2g")]
    async with rig(tmp_path, models, scheduler="fifo") as yard:
        serving = yard.hold("a", "1")
        held = await yard.stage.asked("1")
        loading = yard.call("slow", "2")
        await yard.stage.began("slow")
        stopping = asyncio.create_task(yard.gateway.stop())
        (refused,) = await yard.answered(loading)
        assert (refused.status, refused.code) == (503, "shutting_down")
        held.end("to the end")
        assert (await yard.answered(serving))[0].text == "to the end"
        await stopping


async def test_a_model_is_loaded_from_the_start_as_soon_as_a_machine_has_room_for_it(tmp_path: Path) -> None:
    async with rig(tmp_path, [model("a")], workers=False, scheduler="fifo", preload=["a"]) as yard:
        assert yard.gateway.instances.all() == []
        yard.start_worker({"cpu_count": 2, "memory_gb": 8, "gpu_backend": "nvidia", "gpu_count": 1, "vram_gb": 24})
        await yard.is_state("a", "ready")


async def test_a_request_waits_for_a_machine_to_come(tmp_path: Path) -> None:
    async with rig(tmp_path, [model("a")], workers=False, scheduler="serial") as yard:
        waiting = yard.call("a", "1")
        await yard.queued("a")
        yard.start_worker({"cpu_count": 2, "memory_gb": 8, "gpu_backend": "nvidia", "gpu_count": 1, "vram_gb": 24})
        (answer,) = await yard.answered(waiting)
        assert answer.status == 200


def _running(yard: Rig) -> set[str]:
    return {one.model for one in yard.gateway.instances.by_job.values()}
