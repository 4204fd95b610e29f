"""A configuration that changes while the hub runs."""

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.gateway.e2e.running_gateway import CHAT, ProcessGateway, RunningGateway, model, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningGateway]:
    models = {name: model(name, vram="2g") for name in ("same", "changed", "removed")}
    async with running_gateway(tmp_path_factory.mktemp("reload"), models, scheduler="fifo") as made:
        yield made


async def _reload(gateway: RunningGateway) -> dict[str, object]:
    gateway.configure()
    answer = await gateway.ask_hub("POST", "/v1/models/reload")
    assert answer.status == 200, answer.body
    found: dict[str, object] = answer.json
    return found


async def test_only_models_whose_recipe_changed_are_restarted_and_a_request_is_let_end_first(
    gateway: RunningGateway,
) -> None:
    await gateway.answered(gateway.call("same", "1"), gateway.call("removed", "2"))
    serving = gateway.hold("changed", "3")
    held = await gateway.servers.asked("3")
    gateway.models["changed"] = model("changed", vram="3g")
    gateway.models["same"] = model("same", vram="2g", aliases=["as-before"], ttl=3600)
    del gateway.models["removed"]
    gateway.models["added"] = model("added", vram="2g")
    found = await _reload(gateway)
    assert (found["added"], found["changed"], found["restarted"], found["removed"]) == (
        *(["added"], ["same", "changed"], ["changed"], ["removed"]),
    )
    waiting = gateway.call("changed", "4")
    await gateway.queued("changed")
    assert gateway.servers.loads("changed") == 1
    held.end("to the end")
    assert [answer.status for answer in await gateway.answered(serving, waiting)] == [200, 200]
    answers = await gateway.answered(
        gateway.call("as-before", "5"), gateway.call("added", "6"), gateway.call("removed", "7")
    )
    assert [answer.status for answer in answers] == [200, 200, 404]
    assert [gateway.servers.loads(name) for name in ("same", "changed", "added")] == [1, 2, 1]
    await gateway.until(lambda: not gateway.hub.gateway.instances.of("removed"), "the removed one has ended")


async def test_a_load_by_hand_of_a_model_that_is_about_to_leave_is_the_load_of_the_next(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, [model("a")], scheduler="fifo") as gateway:
        serving = gateway.hold("a", "1")
        held = await gateway.servers.asked("1")
        gateway.models["a"] = model("a", "another")
        await _reload(gateway)
        await gateway.ask_hub("POST", "/v1/models/a/load")
        held.end()
        await gateway.answered(serving)
        await gateway.servers.began("a", 2)


async def test_a_file_that_was_written_is_read_without_being_asked_for(gateway: RunningGateway) -> None:
    gateway.models["later"] = model("later", vram="2g")
    gateway.gateway_table["api_keys"] = ["another-key"]
    gateway.configure()

    async def opens() -> bool:
        return (await gateway.ask("POST", CHAT, {"model": "later", "messages": []}, token="another-key")).status == 200

    await gateway.until(opens, "the new key opens the new model")


async def test_a_file_that_is_broken_changes_nothing_and_says_where(gateway: RunningGateway) -> None:
    file = gateway.configure()
    file.write_text("[gateway]\nscheduler = 'fifo'\n[models.odd]\ncmd = 'x'\nttl = 'soon'\nvrum = 1\n")
    answer = await gateway.ask_hub("POST", "/v1/models/reload")
    assert answer.status == 422
    assert [one["where"] for one in answer.json["errors"]] == [
        f"{file}:5: models.odd.ttl",
        f"{file}:6: models.odd.vrum",
    ]
    listed = (await gateway.ask_hub("GET", "/v1/models")).json
    assert "models.odd.ttl" in listed["config"]["error"]
    assert "odd" not in {one["name"] for one in listed["models"]}
    viewer = (await gateway.ask_hub("POST", "/v1/tokens", {"role": "user", "user": "eve"})).json["token"]
    told = (await gateway.ask_hub("GET", "/v1/models", token=viewer)).json["config"]["error"]
    assert told == "it has mistakes, of which operators are told"
    assert (await gateway.answered(gateway.call("same", "1")))[0].status == 200
    await _reload(gateway)
    assert (await gateway.ask_hub("GET", "/v1/models")).json["config"]["error"] is None


async def test_who_waits_for_a_model_that_is_removed_is_told(gateway: RunningGateway) -> None:
    gateway.models["slow"] = model("slow", "slow", vram="2g")
    await _reload(gateway)
    waiting = gateway.call("slow", "1")
    await gateway.servers.began("slow")
    del gateway.models["slow"]
    await _reload(gateway)
    (refused,) = await gateway.answered(waiting)
    assert refused.status in (404, 503)
    assert "slow" in refused.message


async def test_only_operators_may_have_the_file_read(gateway: RunningGateway) -> None:
    user = (await gateway.ask_hub("POST", "/v1/tokens", {"role": "user", "user": "ann"})).json["token"]
    assert (await gateway.ask_hub("POST", "/v1/models/reload", token=user)).status == 403


async def test_another_scheduler_takes_over_when_what_is_served_has_been_answered(tmp_path: Path) -> None:
    models = [model("a", vram="2g"), model("b", vram="2g")]
    async with running_gateway(tmp_path, models, scheduler="fifo") as gateway:
        await gateway.answered(gateway.call("a", "1"), gateway.call("b", "2"))
        calls = [gateway.hold("a", "3"), gateway.hold("b", "4")]
        held = [await gateway.servers.asked(tag) for tag in ("3", "4")]
        gateway.gateway_table["scheduler"] = "serial"
        await _reload(gateway)
        calls += [gateway.hold("b", "5"), gateway.hold("b", "6")]
        await gateway.until(lambda: len(gateway.hub.gateway._waiting) == 2, "the new ones wait")
        for one in held:
            one.end()
        (await gateway.servers.asked("5")).end("five")
        (await gateway.servers.asked("6")).end("six")
        assert [answer.text for answer in await gateway.answered(*calls)] == ["", "", "five", "six"]
        await gateway.until(
            lambda: [one.model for one in gateway.hub.gateway.instances.all()] == ["b"], "one model is in memory"
        )
        gateway.gateway_table["scheduler"] = "fifo"
        await _reload(gateway)
        await gateway.answered(gateway.call("a", "7"), gateway.call("b", "8"))
        assert (gateway.servers.loads("a"), gateway.servers.loads("b")) == (2, 1)


async def test_a_hub_that_had_no_models_opens_its_gateway_when_it_is_given_some(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, {}, kind=Closed, scheduler="fifo") as gateway:
        assert (await gateway.ask_hub("GET", "/v1/models")).json["models"] == []
        gateway.models["first"] = model("first")
        assert (await _reload(gateway))["added"] == ["first"]
        await gateway.gateway_listens()
        assert (await gateway.answered(gateway.call("first", "1")))[0].status == 200


class Closed(RunningGateway):
    """Whose gateway does not listen until there is something to be called."""

    async def gateway_listens(self) -> None:
        if self.models:
            await super().gateway_listens()


async def test_a_hangup_makes_a_hub_read_its_file(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, [model("a")], kind=ProcessGateway, scheduler="fifo") as gateway:
        assert isinstance(gateway, ProcessGateway)
        gateway.models["b"] = model("b")
        gateway.configure()
        os.kill(gateway.pid, signal.SIGHUP)
        await gateway.is_listed("b")
        assert (await gateway.answered(gateway.call("b", "1")))[0].status == 200


async def test_a_job_that_was_promised_room_between_two_schedulers_gets_it_from_the_next(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, [model("a"), model("long", vram="2g")], scheduler="fifo") as gateway:
        await gateway.answered(gateway.call("a", "1"))
        serving = gateway.hold("long", "2")
        held = await gateway.servers.asked("2")
        for scheduler in ("serial", "fifo"):
            gateway.gateway_table["scheduler"] = scheduler
            await _reload(gateway)
        await gateway.until(lambda: gateway.instance("a").priced, "the room of a is offered")
        job = await gateway.submit("train", "true", min_vram_gb=16)
        await gateway.until(lambda: job in gateway.hub.loop.fleet.room_makers, "it is promised to the job")
        held.end()
        await gateway.answered(serving)
        await gateway.job_is(job, "succeeded")
