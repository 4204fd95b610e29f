"""Hubs and workers that are killed: the models stay."""

import asyncio
from pathlib import Path

import psutil
from tests.gateway.e2e.running_gateway import ProcessGateway, RunningGateway, model, running_gateway

from ostler.hub.gateway.instances import FOUND


async def test_a_killed_hub_leaves_its_models_running_and_the_next_one_comes_back_to_them(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, [model("a"), model("b")], kind=ProcessGateway, scheduler="fifo") as gateway:
        assert isinstance(gateway, ProcessGateway)
        await gateway.answered(gateway.call("a", "1"))
        await gateway.kill_hub()
        assert psutil.pid_exists(gateway.servers.pid("a"))
        await gateway.start_hub()
        await gateway.is_state("a", "ready")
        (answer,) = await gateway.answered(gateway.call("a", "2"))
        assert answer.status == 200
        assert gateway.servers.diary() == ["load a", "a 1", "a 2"]
        (other,) = await gateway.answered(gateway.call("b", "3"))
        assert other.status == 200


async def test_a_killed_worker_comes_back_to_its_models(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, [model("a"), model("b")], kind=ProcessGateway, scheduler="fifo") as gateway:
        assert isinstance(gateway, ProcessGateway)
        await gateway.answered(gateway.call("a", "1"))
        gateway.kill_worker()
        (meanwhile,) = await gateway.answered(gateway.call("a", "2"))
        assert meanwhile.status == 200
        gateway.start_worker()
        await gateway.until(gateway.worker_is_there, "the worker is back")
        (answer,) = await gateway.answered(gateway.call("a", "3"))
        assert answer.status == 200
        assert gateway.servers.loads() == 1
        (other,) = await gateway.answered(gateway.call("b", "4"))
        assert other.status == 200


async def test_a_restarted_hub_keeps_the_models_whose_recipe_is_the_same_and_stops_the_others(tmp_path: Path) -> None:
    models = [model("same", vram="2g"), model("changed", vram="2g"), model("removed", vram="2g")]
    async with running_gateway(tmp_path, models, scheduler="fifo") as gateway:
        await gateway.answered(gateway.call("same", "1"), gateway.call("changed", "2"), gateway.call("removed", "3"))
        await gateway.stop_hub()
        gateway.models["changed"] = model("changed", vram="3g")
        gateway.models["same"] = model("same", vram="2g", aliases=["as-before"], ttl=3600)
        del gateway.models["removed"]
        await gateway.start_hub()
        await gateway.is_state("same", "ready")
        answers = await gateway.answered(
            gateway.call("as-before", "4"), gateway.call("changed", "5"), gateway.call("removed", "6")
        )
        assert [answer.status for answer in answers] == [200, 200, 404]
        assert [gateway.servers.loads(name) for name in ("same", "changed", "removed")] == [1, 2, 1]
        await gateway.until(lambda: _running(gateway) == {"same", "changed"}, "the removed one has ended")


async def test_a_process_that_was_found_and_is_not_well_is_unloaded_too(tmp_path: Path) -> None:
    async with running_gateway(
        tmp_path, [model("ill", "slow", vram="2g"), model("well", vram="2g")], scheduler="fifo"
    ) as gateway:
        gateway.call("ill", "1")
        await gateway.answered(gateway.call("well", "2"))
        await gateway.servers.began("ill")
        await gateway.stop_hub()
        await gateway.start_hub()
        await gateway.is_state("well", "ready")
        assert gateway.instance("ill").phase == FOUND and psutil.pid_exists(gateway.servers.pid("ill"))
        answer = await gateway.ask("POST", "/api/models/ill/unload")
        assert answer.json["unloaded"] == ["ill"] and _running(gateway) == {"well"}
        await gateway.until(lambda: not psutil.pid_exists(gateway.servers.pid("ill")), "its process has ended")


async def test_a_hub_that_stops_tells_those_who_wait_and_lets_end_what_is_served(tmp_path: Path) -> None:
    models = [model("a", vram="2g"), model("slow", "slow", vram="2g")]
    async with running_gateway(tmp_path, models, scheduler="fifo") as gateway:
        serving = gateway.hold("a", "1")
        held = await gateway.servers.asked("1")
        loading = gateway.call("slow", "2")
        await gateway.servers.began("slow")
        stopping = asyncio.create_task(gateway.hub.gateway.stop())
        (refused,) = await gateway.answered(loading)
        assert (refused.status, refused.code) == (503, "shutting_down")
        held.end("to the end")
        assert (await gateway.answered(serving))[0].text == "to the end"
        await stopping


async def test_a_model_is_loaded_from_the_start_as_soon_as_a_machine_has_room_for_it(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, [model("a")], workers=False, scheduler="fifo", preload=["a"]) as gateway:
        assert gateway.hub.gateway.instances.all() == []
        gateway.start_worker({"cpu_count": 2, "memory_gb": 8, "gpu_backend": "nvidia", "gpu_count": 1, "vram_gb": 24})
        await gateway.is_state("a", "ready")


async def test_a_request_waits_for_a_machine_to_come(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, [model("a")], workers=False, scheduler="serial") as gateway:
        waiting = gateway.call("a", "1")
        await gateway.queued("a")
        gateway.start_worker({"cpu_count": 2, "memory_gb": 8, "gpu_backend": "nvidia", "gpu_count": 1, "vram_gb": 24})
        (answer,) = await gateway.answered(waiting)
        assert answer.status == 200


def _running(gateway: RunningGateway) -> set[str]:
    return {one.model for one in gateway.hub.gateway.instances.by_job.values()}
