"""A configuration that changes while the hub runs."""

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.gateway.e2e.rig import CHAT, Apart, Rig, model, rig

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    models = {name: model(name, vram="2g") for name in ("same", "changed", "removed")}
    async with rig(tmp_path_factory.mktemp("reload"), models, scheduler="fifo") as made:
        yield made


async def _reload(yard: Rig) -> dict[str, object]:
    yard.configure()
    answer = await yard.ask_hub("POST", "/v1/models/reload")
    assert answer.status == 200, answer.body
    found: dict[str, object] = answer.json
    return found


async def test_only_models_whose_recipe_changed_are_restarted_and_a_request_is_let_end_first(yard: Rig) -> None:
    await yard.answered(yard.call("same", "1"), yard.call("removed", "2"))
    serving = yard.hold("changed", "3")
    held = await yard.stage.asked("3")
    yard.models["changed"] = model("changed", vram="3g")
    yard.models["same"] = model("same", vram="2g", aliases=["as-before"], ttl=3600)
    del yard.models["removed"]
    yard.models["added"] = model("added", vram="2g")
    found = await _reload(yard)
    assert (found["added"], found["changed"], found["restarted"], found["removed"]) == (
        *(["added"], ["same", "changed"], ["changed"], ["removed"]),
    )
    waiting = yard.call("changed", "4")
    await yard.queued("changed")
    assert yard.stage.loads("changed") == 1
    held.end("to the end")
    assert [answer.status for answer in await yard.answered(serving, waiting)] == [200, 200]
    answers = await yard.answered(yard.call("as-before", "5"), yard.call("added", "6"), yard.call("removed", "7"))
    assert [answer.status for answer in answers] == [200, 200, 404]
    assert [yard.stage.loads(name) for name in ("same", "changed", "added")] == [1, 2, 1]
    await yard.until(lambda: not yard.gateway.instances.of("removed"), "the removed one has ended")


async def test_a_load_by_hand_of_a_model_that_is_about_to_leave_is_the_load_of_the_next(tmp_path: Path) -> None:
    async with rig(tmp_path, [model("a")], scheduler="fifo") as yard:
        serving = yard.hold("a", "1")
        held = await yard.stage.asked("1")
        yard.models["a"] = model("a", "another")
        await _reload(yard)
        await yard.ask_hub("POST", "/v1/models/a/load")
        held.end()
        await yard.answered(serving)
        await yard.stage.began("a", 2)


async def test_a_file_that_was_written_is_read_without_being_asked_for(yard: Rig) -> None:
    yard.models["later"] = model("later", vram="2g")
    yard.gateway_table["api_keys"] = ["another-key"]
    yard.configure()

    async def opens() -> bool:
        return (await yard.ask("POST", CHAT, {"model": "later", "messages": []}, token="another-key")).status == 200

    await yard.until(opens, "the new key opens the new model")


async def test_a_file_that_is_broken_changes_nothing_and_says_where(yard: Rig) -> None:
    file = yard.configure()
    file.write_text("[gateway]\nscheduler = 'fifo'\n[models.odd]\ncmd = 'x'\nttl = 'soon'\nvrum = 1\n")
    answer = await yard.ask_hub("POST", "/v1/models/reload")
    assert answer.status == 422
    assert [one["where"] for one in answer.json["errors"]] == [
        f"{file}:5: models.odd.ttl",
        f"{file}:6: models.odd.vrum",
    ]
    listed = (await yard.ask_hub("GET", "/v1/models")).json
    assert "models.odd.ttl" in listed["config"]["error"]
    assert "odd" not in {one["name"] for one in listed["models"]}
    viewer = (await yard.ask_hub("POST", "/v1/tokens", {"role": "user", "user": "eve"})).json["token"]
    told = (await yard.ask_hub("GET", "/v1/models", token=viewer)).json["config"]["error"]
    assert told == "it has mistakes, of which operators are told"
    assert (await yard.answered(yard.call("same", "1")))[0].status == 200
    await _reload(yard)
    assert (await yard.ask_hub("GET", "/v1/models")).json["config"]["error"] is None


async def test_who_waits_for_a_model_that_is_removed_is_told(yard: Rig) -> None:
    yard.models["slow"] = model("slow", "slow", vram="2g")
    await _reload(yard)
    waiting = yard.call("slow", "1")
    await yard.stage.began("slow")
    del yard.models["slow"]
    await _reload(yard)
    (refused,) = await yard.answered(waiting)
    assert refused.status in (404, 503)
    assert "slow" in refused.message


async def test_only_operators_may_have_the_file_read(yard: Rig) -> None:
    user = (await yard.ask_hub("POST", "/v1/tokens", {"role": "user", "user": "ann"})).json["token"]
    assert (await yard.ask_hub("POST", "/v1/models/reload", token=user)).status == 403


async def test_another_scheduler_takes_over_when_what_is_served_has_been_answered(tmp_path: Path) -> None:
    models = [model("a", vram="2g"), model("b", vram="2g")]
    async with rig(tmp_path, models, scheduler="fifo") as yard:
        await yard.answered(yard.call("a", "1"), yard.call("b", "2"))
        calls = [yard.hold("a", "3"), yard.hold("b", "4")]
        held = [await yard.stage.asked(tag) for tag in ("3", "4")]
        yard.gateway_table["scheduler"] = "serial"
        await _reload(yard)
        calls += [yard.hold("b", "5"), yard.hold("b", "6")]
        await yard.until(lambda: len(yard.gateway._waiting) == 2, "the new ones wait")
        for one in held:
            one.end()
        (await yard.stage.asked("5")).end("five")
        (await yard.stage.asked("6")).end("six")
        assert [answer.text for answer in await yard.answered(*calls)] == ["", "", "five", "six"]
        await yard.until(lambda: [one.model for one in yard.gateway.instances.all()] == ["b"], "one model is in memory")
        yard.gateway_table["scheduler"] = "fifo"
        await _reload(yard)
        await yard.answered(yard.call("a", "7"), yard.call("b", "8"))
        assert (yard.stage.loads("a"), yard.stage.loads("b")) == (2, 1)


async def test_a_hub_that_had_no_models_opens_its_gateway_when_it_is_given_some(tmp_path: Path) -> None:
    async with rig(tmp_path, {}, kind=Closed, scheduler="fifo") as yard:
        assert (await yard.ask_hub("GET", "/v1/models")).json["models"] == []
        yard.models["first"] = model("first")
        assert (await _reload(yard))["added"] == ["first"]
        await yard.gateway_listens()
        assert (await yard.answered(yard.call("first", "1")))[0].status == 200


class Closed(Rig):
    """Whose gateway does not listen until there is something to be called."""

    async def gateway_listens(self) -> None:
        if self.models:
            await super().gateway_listens()


async def test_a_hangup_makes_a_hub_read_its_file(tmp_path: Path) -> None:
    async with rig(tmp_path, [model("a")], kind=Apart, scheduler="fifo") as yard:
        assert isinstance(yard, Apart)
        yard.models["b"] = model("b")
        yard.configure()
        os.kill(yard.pid, signal.SIGHUP)
        await yard.is_listed("b")
        assert (await yard.answered(yard.call("b", "1")))[0].status == 200


async def test_a_job_that_was_promised_room_between_two_schedulers_gets_it_from_the_next(tmp_path: Path) -> None:
    async with rig(tmp_path, [model("a"), model("long", vram="2g")], scheduler="fifo") as yard:
        await yard.answered(yard.call("a", "1"))
        serving = yard.hold("long", "2")
        held = await yard.stage.asked("2")
        for scheduler in ("serial", "fifo"):
            yard.gateway_table["scheduler"] = scheduler
            await _reload(yard)
        await yard.until(lambda: yard.instance("a").priced, "the room of a is offered")
        job = await yard.submit("train", "true", min_vram_gb=16)
        await yard.until(lambda: job in yard.hub.loop.fleet.room_makers, "it is promised to the job")
        held.end()
        await yard.answered(serving)
        await yard.job_is(job, "succeeded")
