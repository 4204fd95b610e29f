"""What the gateway learns of its models, and keeps beyond the life of the hub."""

from pathlib import Path
from typing import Any

from tests.gateway.e2e.rig import Rig, model, rig

from ostler.domain.records import AttemptRecord


async def test_pins_and_load_times_outlive_the_hub(tmp_path: Path) -> None:
    models = [model("a", vram="2g"), model("b", vram="2g", pinned=True)]
    async with rig(tmp_path, models, scheduler="fifo") as yard:
        await yard.answered(yard.call("a", "1"))
        await yard.ask_hub("POST", "/v1/models/a/pin")
        await yard.ask_hub("POST", "/v1/models/b/unpin")
        before = yard.gateway.scheduler.state.learnt["a"]
        await yard.stop_hub()
        await yard.start_hub()
        assert [(await _listed(yard, name))["pinned"] for name in ("a", "b")] == [True, False]
        learnt = yard.gateway.scheduler.state.learnt["a"]
        assert (learnt.load_s, learnt.places, learnt.loaded_before) == (before.load_s, before.places, True)
        assert list(learnt.places) == ["box"]
        recipe = yard.gateway.scheduler.state.catalogue.recipes["a"]
        assert recipe.pinned
        assert (await yard.ask_hub("POST", "/v1/models/a/unpin")).json["pinned"] is False


async def test_a_process_that_took_more_than_was_declared_is_given_that_the_next_time(tmp_path: Path) -> None:
    models = [model("small", vram="2g", memory="1m"), model("honest", vram="2g", memory="4g")]
    async with rig(tmp_path, models, scheduler="fifo") as yard:
        await yard.answered(yard.call("small", "1"), yard.call("honest", "2"))
        assert [(await _listed(yard, name))["learnt"] for name in ("small", "honest")] == [[], []]
        await yard.ask("POST", "/api/models/unload")
        small, honest = [await _listed(yard, name) for name in ("small", "honest")]
        assert (small["learnt"], honest["learnt"], honest["memory_gb"]) == (["memory"], [], 4.0)
        assert small["memory_gb"] > 4 / 1024
        await yard.answered(yard.call("small", "3"))
        held = yard.hub.loop.fleet.held[yard.instance("small").attempt].held
        assert held.memory_mib >= small["memory_gb"] * 1024


async def test_a_process_that_took_more_than_its_machine_offers_is_given_all_of_that_and_loaded_again(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path, [model("fat", memory="1m")], offer={"memory_gb": 4 / 1024}, scheduler="fifo") as yard:
        await yard.answered(yard.call("fat", "1"))
        await yard.ask("POST", "/api/models/unload")
        assert (await _listed(yard, "fat"))["memory_gb"] == 4 / 1024
        assert (await yard.answered(yard.call("fat", "2")))[0].status == 200


async def test_a_model_of_unknown_size_gets_a_whole_gpu_and_then_what_it_took(tmp_path: Path) -> None:
    async with rig(tmp_path, [model("auto", vram="auto")], scheduler="fifo") as yard:
        assert _needs(await _listed(yard, "auto")) == (1, 0.0, [])
        await yard.answered(yard.call("auto", "1"))
        _took(yard, "auto", vram_mib=10_000)
        assert _needs(await _listed(yard, "auto")) == (0, 11_000 / 1024, ["vram"])
        await yard.ask("POST", "/api/models/unload")
        await yard.answered(yard.call("auto", "2"))
        assert yard.hub.loop.fleet.held[yard.instance("auto").attempt].held.grant.share_mib == 11_000
        _took(yard, "auto", vram_mib=8_000)
        assert _needs(await _listed(yard, "auto")) == (0, 11_000 / 1024, ["vram"]), "never below what was seen"
        _took(yard, "auto", vram_mib=24_000)
        assert _needs(await _listed(yard, "auto")) == (0, 24.0, ["vram"]), "what fits its device fits it again"
        await yard.stop_hub()
        await yard.start_hub()
        assert _needs(await _listed(yard, "auto")) == (0, 24.0, ["vram"])
        yard.models["auto"] = model("auto", "another", vram="auto")
        yard.configure()
        assert (await yard.ask_hub("POST", "/v1/models/reload")).status == 200
        assert _needs(await _listed(yard, "auto")) == (1, 0.0, []), "another recipe may take anything"


def _took(yard: Rig, name: str, vram_mib: int) -> None:
    """As its worker would measure it, if it had such a GPU."""
    instance = yard.instance(name)
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
    yard.gateway.memory.took(yard.hub.loop.fleet, instance, record)


def _needs(listed: dict[str, Any]) -> tuple[int, float, list[str]]:
    return listed["gpus"], listed["vram_gb"], listed["learnt"]


async def _listed(yard: Rig, name: str) -> dict[str, Any]:
    models = (await yard.ask_hub("GET", "/v1/models")).json["models"]
    return next(one for one in models if one["name"] == name)
