"""What the gateway learns of its models, and keeps beyond the life of the hub."""

from pathlib import Path
from typing import Any

from tests.gateway.e2e.running_gateway import RunningGateway, model, running_gateway

from ostler.domain.records import AttemptRecord


async def test_pins_and_load_times_outlive_the_hub(tmp_path: Path) -> None:
    models = [model("a", vram="2g"), model("b", vram="2g", pinned=True)]
    async with running_gateway(tmp_path, models, scheduler="fifo") as gateway:
        await gateway.answered(gateway.call("a", "1"))
        await gateway.ask_hub("POST", "/v1/models/a/pin")
        await gateway.ask_hub("POST", "/v1/models/b/unpin")
        before = gateway.hub.gateway.scheduler.state.learnt["a"]
        await gateway.stop_hub()
        await gateway.start_hub()
        assert [(await _listed(gateway, name))["pinned"] for name in ("a", "b")] == [True, False]
        learnt = gateway.hub.gateway.scheduler.state.learnt["a"]
        assert (learnt.measured_load_s, learnt.places) == (before.measured_load_s, before.places)
        assert learnt.loaded_before
        assert list(learnt.places) == ["box"]
        recipe = gateway.hub.gateway.scheduler.state.catalogue.recipes["a"]
        assert recipe.pinned
        assert (await gateway.ask_hub("POST", "/v1/models/a/unpin")).json["pinned"] is False


async def test_a_process_that_took_more_than_was_declared_is_given_that_the_next_time(tmp_path: Path) -> None:
    models = [model("small", vram="2g", memory="1m"), model("honest", vram="2g", memory="4g")]
    async with running_gateway(tmp_path, models, scheduler="fifo") as gateway:
        await gateway.answered(gateway.call("small", "1"), gateway.call("honest", "2"))
        assert [(await _listed(gateway, name))["learnt"] for name in ("small", "honest")] == [[], []]
        await gateway.ask("POST", "/api/models/unload")
        small, honest = [await _listed(gateway, name) for name in ("small", "honest")]
        assert (small["learnt"], honest["learnt"], honest["memory_gb"]) == (["memory"], [], 4.0)
        assert small["memory_gb"] > 4 / 1024
        await gateway.answered(gateway.call("small", "3"))
        held = gateway.hub.loop.fleet.held[gateway.instance("small").attempt].held
        assert held.memory_mib >= small["memory_gb"] * 1024


async def test_a_process_that_took_more_than_its_machine_offers_is_given_all_of_that_and_loaded_again(
    tmp_path: Path,
) -> None:
    async with running_gateway(
        tmp_path, [model("fat", memory="1m")], offer={"memory_gb": 4 / 1024}, scheduler="fifo"
    ) as gateway:
        await gateway.answered(gateway.call("fat", "1"))
        await gateway.ask("POST", "/api/models/unload")
        assert (await _listed(gateway, "fat"))["memory_gb"] == 4 / 1024
        assert (await gateway.answered(gateway.call("fat", "2")))[0].status == 200


async def test_a_model_of_unknown_size_gets_a_whole_gpu_and_then_what_it_took(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, [model("auto", vram="auto")], scheduler="fifo") as gateway:
        assert _needs(await _listed(gateway, "auto")) == (1, 0.0, [])
        await gateway.answered(gateway.call("auto", "1"))
        _took(gateway, "auto", vram_mib=10_000)
        assert _needs(await _listed(gateway, "auto")) == (0, 11_000 / 1024, ["vram"])
        await gateway.ask("POST", "/api/models/unload")
        await gateway.answered(gateway.call("auto", "2"))
        assert gateway.hub.loop.fleet.held[gateway.instance("auto").attempt].held.grant.share_mib == 11_000
        _took(gateway, "auto", vram_mib=8_000)
        assert _needs(await _listed(gateway, "auto")) == (0, 11_000 / 1024, ["vram"]), "never below what was seen"
        _took(gateway, "auto", vram_mib=24_000)
        assert _needs(await _listed(gateway, "auto")) == (0, 24.0, ["vram"]), "what fits its device fits it again"
        await gateway.stop_hub()
        await gateway.start_hub()
        assert _needs(await _listed(gateway, "auto")) == (0, 24.0, ["vram"])
        gateway.models["auto"] = model("auto", "another", vram="auto")
        gateway.configure()
        assert (await gateway.ask_hub("POST", "/v1/models/reload")).status == 200
        assert _needs(await _listed(gateway, "auto")) == (1, 0.0, []), "another recipe may take anything"


def _took(gateway: RunningGateway, name: str, vram_mib: int) -> None:
    """As its worker would measure it, if it had such a GPU."""
    instance = gateway.instance(name)
    record = AttemptRecord(
        attempt=instance.attempt,
        task_id=instance.job_id,
        job_id=instance.job_id,
        worker=instance.worker,
        devices=[0],
        state="running",
        assigned_at=0.0,
        peak_vram_mib=vram_mib,
    )
    gateway.hub.gateway.memory.took(gateway.hub.loop.fleet, instance, record)


def _needs(listed: dict[str, Any]) -> tuple[int, float, list[str]]:
    return listed["gpus"], listed["vram_gb"], listed["learnt"]


async def _listed(gateway: RunningGateway, name: str) -> dict[str, Any]:
    models = (await gateway.ask_hub("GET", "/v1/models")).json["models"]
    return next(one for one in models if one["name"] == name)
