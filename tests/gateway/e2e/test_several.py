"""Several processes of one model, each known by its load; and processes that end in their own way."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from tests.gateway.e2e.model_servers import Asked
from tests.gateway.e2e.running_gateway import Answer, RunningGateway, model, running_gateway

from ostler.hub.api import shapes

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningGateway]:
    """A load is believed to take next to nothing: whoever waits is worth another process."""
    models = [
        model("twin", vram="2g", concurrency=1, max_instances=2, load_s=0.01),
        model("single", vram="2g", concurrency=1, load_s=0.01),
    ]
    async with running_gateway(tmp_path_factory.mktemp("several"), models, scheduler="fifo") as made:
        yield made


async def _two(gateway: RunningGateway) -> tuple[list[asyncio.Task[Answer]], list[Asked]]:
    """Two processes of `twin`, each with a request that it holds."""
    calls = [gateway.hold("twin", "1")]
    held = [await gateway.servers.asked("1")]
    calls.append(gateway.hold("twin", "2"))
    held.append(await gateway.servers.asked("2"))
    assert gateway.servers.loads("twin") == 2
    return calls, held


async def test_who_waits_for_a_model_at_its_limit_is_served_by_another_process_of_it(gateway: RunningGateway) -> None:
    calls, held = await _two(gateway)
    running = (await gateway.ask("GET", "/running")).json["running"]
    assert [(one["model"], one["state"], one["in_flight"]) for one in running] == [("twin", "ready", 1)] * 2
    assert len({one["job_id"] for one in running}) == 2
    listed = next(one for one in (await gateway.ask_hub("GET", "/v1/models")).json["models"] if one["name"] == "twin")
    assert (listed["state"], listed["in_flight"], len(listed["instances"])) == ("ready", 2, 2)
    described = msgspec.convert(listed, shapes.Model)
    assert listed.keys() == set(described.__struct_fields__)
    third = gateway.hold("twin", "3")
    await gateway.queued("twin")
    held[1].end("two")
    (await gateway.servers.asked("3")).end("three")
    held[0].end("one")
    answers = await gateway.answered(*calls, third)
    assert [answer.text for answer in answers] == ["one", "two", "three"]
    assert gateway.servers.loads("twin") == 2


async def test_the_death_of_one_process_takes_only_its_own_requests(gateway: RunningGateway) -> None:
    calls, held = await _two(gateway)
    os.kill(gateway.servers.pid("twin"), signal.SIGKILL)
    again = await gateway.servers.asked("2", times=2)
    again.end("again")
    held[0].end("untouched")
    assert [answer.text for answer in await gateway.answered(*calls)] == ["untouched", "again"]


async def test_unloading_a_model_ends_all_of_its_processes(gateway: RunningGateway) -> None:
    calls, _ = await _two(gateway)
    assert (await gateway.ask("POST", "/api/models/twin/unload")).json == {"unloaded": ["twin"]}
    told = (await gateway.ask_hub("GET", "/v1/audit?object=model/twin")).json["rows"]
    assert ("model.unload", "gateway", "done") in [(row["action"], row["source"], row["outcome"]) for row in told]
    assert {answer.status for answer in await gateway.answered(*calls)} <= {502, 503}
    assert (await gateway.ask("GET", "/running")).json["running"] == []


async def test_a_model_that_may_have_one_process_has_one(gateway: RunningGateway) -> None:
    calls = [gateway.hold("single", "1")]
    held = await gateway.servers.asked("1")
    calls.append(gateway.hold("single", "2"))
    await gateway.queued("single")
    held.end()
    (await gateway.servers.asked("2")).end()
    await gateway.answered(*calls)
    assert gateway.servers.loads("single") == 1


async def test_a_restarted_hub_comes_back_to_all_processes_of_a_model(tmp_path: Path) -> None:
    models = [model("twin", vram="2g", concurrency=1, max_instances=2, load_s=0.01)]
    async with running_gateway(tmp_path, models, scheduler="fifo") as gateway:
        calls, held = await _two(gateway)
        for one in held:
            one.end()
        await gateway.answered(*calls)
        await gateway.stop_hub()
        await gateway.start_hub()

        async def both_are_ready() -> bool:
            running = (await gateway.ask("GET", "/running")).json["running"]
            return [one["state"] for one in running] == ["ready", "ready"]

        await gateway.until(both_are_ready, "both processes are back")
        again = [gateway.hold("twin", "3"), gateway.hold("twin", "4")]
        for tag in ("3", "4"):
            (await gateway.servers.asked(tag)).end(tag)
        assert {answer.text for answer in await gateway.answered(*again)} == {"3", "4"}
        assert gateway.servers.loads("twin") == 2


async def test_a_model_is_ended_by_its_own_command_and_that_has_its_time(tmp_path: Path) -> None:
    """The command knows the port and the process; a server that ignores it gets SIGTERM after `stop_timeout`."""
    said = tmp_path / "said"
    kind = {"cmd_stop": ["sh", "-c", f"echo ${{MODEL_ID}} $OSTLER_PORT $0 $1 >> {said}; kill $1", "${PORT}", "${PID}"]}
    deaf = {"cmd_stop": ["sh", "-c", f"echo deaf >> {said}"], "stop_timeout": 0.2}
    models = {"kind": model("kind", vram="2g") | kind, "deaf": model("deaf", vram="2g") | deaf}
    async with running_gateway(tmp_path, models, scheduler="fifo") as gateway:
        await gateway.answered(gateway.call("kind", "1"), gateway.call("deaf", "2"))
        port = gateway.instance("kind").port
        await gateway.ask("POST", "/api/models/kind/unload")
        assert said.read_text() == f"kind {port} {port} {gateway.servers.pid('kind')}\n"
        await gateway.ask("POST", "/api/models/deaf/unload")
        assert said.read_text().endswith("deaf\n")
        assert (await gateway.ask("GET", "/running")).json["running"] == []
