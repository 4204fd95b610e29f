"""Several processes of one model, each known by its load; and processes that end in their own way."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from tests.gateway.e2e.rig import Answer, Rig, model, rig
from tests.gateway.e2e.stage import Asked

from ostler.hub.api import shapes

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    """A load is believed to take next to nothing: whoever waits is worth another process."""
    models = [
        model("twin", vram="2g", concurrency=1, max_instances=2, load_s=0.01),
        model("single", vram="2g", concurrency=1, load_s=0.01),
    ]
    async with rig(tmp_path_factory.mktemp("several"), models, scheduler="fifo") as made:
        yield made


async def _two(yard: Rig) -> tuple[list[asyncio.Task[Answer]], list[Asked]]:
    """Two processes of `twin`, each with a request that it holds."""
    calls = [yard.hold("twin", "1")]
    held = [await yard.stage.asked("1")]
    calls.append(yard.hold("twin", "2"))
    held.append(await yard.stage.asked("2"))
    assert yard.stage.loads("twin") == 2
    return calls, held


async def test_who_waits_for_a_model_at_its_limit_is_served_by_another_process_of_it(yard: Rig) -> None:
    calls, held = await _two(yard)
    running = (await yard.ask("GET", "/running")).json["running"]
    assert [(one["model"], one["state"], one["in_flight"]) for one in running] == [("twin", "ready", 1)] * 2
    assert len({one["job_id"] for one in running}) == 2
    listed = next(one for one in (await yard.ask_hub("GET", "/v1/models")).json["models"] if one["name"] == "twin")
    assert (listed["state"], listed["in_flight"], len(listed["instances"])) == ("ready", 2, 2)
    described = msgspec.convert(listed, shapes.Model)
    assert listed.keys() == set(described.__struct_fields__)
    third = yard.hold("twin", "3")
    await yard.queued("twin")
    held[1].end("two")
    (await yard.stage.asked("3")).end("three")
    held[0].end("one")
    answers = await yard.answered(*calls, third)
    assert [answer.text for answer in answers] == ["one", "two", "three"]
    assert yard.stage.loads("twin") == 2


async def test_the_death_of_one_process_takes_only_its_own_requests(yard: Rig) -> None:
    calls, held = await _two(yard)
    os.kill(yard.stage.pid("twin"), signal.SIGKILL)
    again = await yard.stage.asked("2", times=2)
    again.end("again")
    held[0].end("untouched")
    assert [answer.text for answer in await yard.answered(*calls)] == ["untouched", "again"]


async def test_unloading_a_model_ends_all_of_its_processes(yard: Rig) -> None:
    calls, _ = await _two(yard)
    assert (await yard.ask("POST", "/api/models/twin/unload")).json == {"unloaded": ["twin"]}
    told = (await yard.ask_hub("GET", "/v1/audit?object=model/twin")).json["rows"]
    assert ("model.unload", "gateway", "done") in [(row["action"], row["source"], row["outcome"]) for row in told]
    assert {answer.status for answer in await yard.answered(*calls)} <= {502, 503}
    assert (await yard.ask("GET", "/running")).json["running"] == []


async def test_a_model_that_may_have_one_process_has_one(yard: Rig) -> None:
    calls = [yard.hold("single", "1")]
    held = await yard.stage.asked("1")
    calls.append(yard.hold("single", "2"))
    await yard.queued("single")
    held.end()
    (await yard.stage.asked("2")).end()
    await yard.answered(*calls)
    assert yard.stage.loads("single") == 1


async def test_a_restarted_hub_comes_back_to_all_processes_of_a_model(tmp_path: Path) -> None:
    models = [model("twin", vram="2g", concurrency=1, max_instances=2, load_s=0.01)]
    async with rig(tmp_path, models, scheduler="fifo") as yard:
        calls, held = await _two(yard)
        for one in held:
            one.end()
        await yard.answered(*calls)
        await yard.stop_hub()
        await yard.start_hub()

        async def both_are_ready() -> bool:
            running = (await yard.ask("GET", "/running")).json["running"]
            return [one["state"] for one in running] == ["ready", "ready"]

        await yard.until(both_are_ready, "both processes are back")
        again = [yard.hold("twin", "3"), yard.hold("twin", "4")]
        for tag in ("3", "4"):
            (await yard.stage.asked(tag)).end(tag)
        assert {answer.text for answer in await yard.answered(*again)} == {"3", "4"}
        assert yard.stage.loads("twin") == 2


async def test_a_model_is_ended_by_its_own_command_and_that_has_its_time(tmp_path: Path) -> None:
    """The command knows the port and the process; a server that ignores it gets SIGTERM after `stop_timeout`."""
    said = tmp_path / "said"
    kind = {"cmd_stop": ["sh", "-c", f"echo ${{MODEL_ID}} $OSTLER_PORT $0 $1 >> {said}; kill $1", "${PORT}", "${PID}"]}
    deaf = {"cmd_stop": ["sh", "-c", f"echo deaf >> {said}"], "stop_timeout": 0.2}
    models = {"kind": model("kind", vram="2g") | kind, "deaf": model("deaf", vram="2g") | deaf}
    async with rig(tmp_path, models, scheduler="fifo") as yard:
        await yard.answered(yard.call("kind", "1"), yard.call("deaf", "2"))
        port = yard.instance("kind").port
        await yard.ask("POST", "/api/models/kind/unload")
        assert said.read_text() == f"kind {port} {port} {yard.stage.pid('kind')}\n"
        await yard.ask("POST", "/api/models/deaf/unload")
        assert said.read_text().endswith("deaf\n")
        assert (await yard.ask("GET", "/running")).json["running"] == []
