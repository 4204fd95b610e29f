"""Workers that are told to leave, are killed, and come back: their models are served all the same."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import pytest_asyncio
from tests.gateway.e2e.running_gateway import OFFER, RunningGateway, first_data, model, running_gateway

from ostler.hub.gateway import processes
from ostler.hub.gateway.instances import READY

LONG_S = 60.0
ROUNDS = int(os.environ.get("OSTLER_TEST_ROUNDS", "1"))


@pytest_asyncio.fixture(params=["here", "elsewhere"])
async def gateway(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[RunningGateway]:
    """With a worker on the hub's machine, or with one that passes for another machine's and is reached by tunnels."""
    if request.param == "elsewhere":
        monkeypatch.setattr(processes, "socket", SimpleNamespace(gethostname=lambda: "the-hub"))
    async with running_gateway(tmp_path, [model("a")], workers=False, scheduler="fifo") as made:
        made.start_worker(OFFER, "one", drain_s=LONG_S)
        await made.workers_are_there("one")
        yield made


async def start(gateway: RunningGateway, *names: str, drain_s: float = LONG_S) -> None:
    for name in names:
        gateway.start_worker(OFFER, name, drain_s=drain_s)
    await gateway.workers_are_there(*names)


async def running(gateway: RunningGateway) -> dict[str, str]:
    """Where each process of the model is, and in which state."""
    found = (await gateway.ask("GET", "/running")).json["running"]
    return {one["worker"]: one["state"] for one in found}


async def runs(gateway: RunningGateway, expected: dict[str, str]) -> None:
    async def such() -> bool:
        return await running(gateway) == expected

    await gateway.until(such, f"the model is {expected}")


async def test_a_worker_that_leaves_finishes_what_is_served_and_others_get_the_new_requests(
    gateway: RunningGateway,
) -> None:
    serving = gateway.hold("a", "1")
    held = await gateway.servers.asked("1")
    streaming = await gateway.stream("a", "2")
    stream = await gateway.servers.asked("2")
    stream.say("begun")
    assert b"begun" in await first_data(streaming)
    await start(gateway, "two")
    gateway.tell_worker_to_leave("one")
    await runs(gateway, {"one": "draining", "two": "ready"})
    (answer,) = await gateway.answered(gateway.call("a", "3"))
    assert answer.status == 200 and gateway.instance("a").worker == "two"
    held.end("to the end")
    stream.end("and this")
    assert (await gateway.answered(serving))[0].text == "to the end"
    assert b"and this" in await streaming.content.read()
    await gateway.worker_has_left("one")
    assert await running(gateway) == {"two": "ready"} and gateway.servers.loads() == 2


async def test_a_restarted_worker_has_its_model_again_without_a_request(gateway: RunningGateway) -> None:
    await gateway.answered(gateway.call("a", "1"))
    first = gateway.servers.pid("a")
    gateway.tell_worker_to_leave("one")
    await gateway.worker_has_left("one")
    assert await running(gateway) == {} and not psutil.pid_exists(first)
    await start(gateway, "one")
    await runs(gateway, {"one": "ready"})
    (answer,) = await gateway.answered(gateway.call("a", "2"))
    assert answer.status == 200 and gateway.servers.loads() == 2


async def test_requests_that_come_while_the_only_worker_restarts_wait_for_it(gateway: RunningGateway) -> None:
    await gateway.answered(gateway.call("a", "1"))
    gateway.tell_worker_to_leave("one")
    await gateway.worker_has_left("one")
    waiting = gateway.call("a", "2")
    await gateway.queued("a")
    await start(gateway, "one")
    assert (await gateway.answered(waiting))[0].status == 200


async def test_what_takes_longer_than_the_drain_is_stopped_and_repeated_if_nothing_was_sent(
    gateway: RunningGateway,
) -> None:
    """A stream that has begun cannot be repeated: it ends with an error."""
    gateway.tell_worker_to_leave("one")
    await gateway.worker_has_left("one")
    await start(gateway, "one", drain_s=0.3)
    repeated = gateway.hold("a", "1")
    await gateway.servers.asked("1")
    streaming = await gateway.stream("a", "2")
    stream = await gateway.servers.asked("2")
    stream.say("begun")
    assert b"begun" in await first_data(streaming)
    await start(gateway, "two")
    gateway.tell_worker_to_leave("one")
    assert b"error" in await streaming.content.read()
    (await gateway.servers.asked("1", times=2)).end("once more")
    assert (await gateway.answered(repeated))[0].text == "once more"
    await gateway.worker_has_left("one")


async def test_a_killed_worker_is_reached_again_without_a_reload(gateway: RunningGateway) -> None:
    await gateway.answered(gateway.call("a", "1"))
    is_far = gateway.instance("a").way.tunnel
    gateway.kill_worker("one")
    if is_far:
        await runs(gateway, {"one": "unreachable"})
    meanwhile = gateway.call("a", "2")
    if is_far:
        await gateway.queued("a")
    await start(gateway, "one")
    assert (await gateway.answered(meanwhile))[0].status == 200
    await runs(gateway, {"one": "ready"})
    assert (await gateway.answered(gateway.call("a", "3")))[0].status == 200
    assert gateway.servers.loads() == 1


async def test_what_a_killed_worker_and_its_supervisor_had_is_loaded_anew(gateway: RunningGateway) -> None:
    serving = gateway.hold("a", "1")
    await gateway.servers.asked("1")
    gateway.kill_worker("one")
    gateway.kill_supervisors("one")
    psutil.Process(gateway.servers.pid("a")).kill()
    await start(gateway, "one", "two")
    (await gateway.servers.asked("1", times=2)).end("on a fresh process")
    assert (await gateway.answered(serving))[0].text == "on a fresh process"
    assert (await gateway.answered(gateway.call("a", "2")))[0].status == 200


async def test_a_model_leaves_a_worker_that_an_operator_drains_and_may_come_back(gateway: RunningGateway) -> None:
    serving = gateway.hold("a", "1")
    held = await gateway.servers.asked("1")
    assert (await gateway.ask_hub("POST", "/v1/workers/one/drain")).status == 200
    await runs(gateway, {"one": "draining"})
    assert (await gateway.ask_hub("POST", "/v1/workers/one/resume")).status == 200
    await runs(gateway, {"one": "ready"})
    await start(gateway, "two")
    assert (await gateway.ask_hub("POST", "/v1/workers/one/drain")).status == 200
    await runs(gateway, {"one": "draining", "two": "ready"})
    assert (await gateway.answered(gateway.call("a", "2")))[0].status == 200
    held.end()
    assert (await gateway.answered(serving))[0].status == 200
    await runs(gateway, {"two": "ready"})


async def test_a_worker_that_restarts_while_the_hub_is_away_has_its_model_again(gateway: RunningGateway) -> None:
    gateway.tell_worker_to_leave("one")
    await gateway.worker_has_left("one")
    await start(gateway, "one", drain_s=0.1)
    await gateway.answered(gateway.call("a", "1"))
    await gateway.stop_hub()
    gateway.tell_worker_to_leave("one")
    await gateway.worker_has_left("one")
    await gateway.start_hub()
    await start(gateway, "one")
    assert (await gateway.answered(gateway.call("a", "2")))[0].status == 200
    await runs(gateway, {"one": READY})
    assert gateway.servers.loads() == 2


async def test_a_hub_that_restarts_while_a_worker_leaves_lets_the_model_go_on_another(gateway: RunningGateway) -> None:
    await start(gateway, "two")
    await gateway.answered(gateway.call("a", "1"))
    leaving = gateway.instance("a").worker
    await gateway.stop_hub()
    gateway.tell_worker_to_leave(leaving)
    await gateway.start_hub()
    await gateway.worker_has_left(leaving)
    (other,) = {"one", "two"} - {leaving}
    await runs(gateway, {other: "ready"})
    assert (await gateway.answered(gateway.call("a", "2")))[0].status == 200


async def test_a_rolling_restart_under_load_loses_no_request(gateway: RunningGateway) -> None:
    """Three workers, one after the other, while callers ask all the time. `make rolling` does it more often."""
    await start(gateway, "two", "three")
    await gateway.answered(gateway.call("a", "0"))
    answers: list[tuple[int, bool]] = []
    is_over = asyncio.Event()

    async def ask_on(caller: int) -> None:
        number = 0
        while not is_over.is_set():
            number += 1
            streams = bool(caller % 2)
            (answer,) = await gateway.answered(gateway.call("a", f"{caller} {number}", stream=streams))
            answers.append((answer.status, (b"[DONE]" if streams else b"hello from a") in answer.body))

    callers = [asyncio.create_task(ask_on(caller)) for caller in range(4)]
    for name in ROUNDS * ("one", "two", "three"):
        before = len(answers)
        gateway.tell_worker_to_leave(name)
        await gateway.worker_has_left(name)
        await start(gateway, name)
        await gateway.until(lambda before=before: len(answers) > before + 20, "the load goes on")
    is_over.set()
    await asyncio.gather(*callers)
    assert set(answers) == {(200, True)}
