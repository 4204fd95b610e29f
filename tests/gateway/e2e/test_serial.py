"""The rules of `serial`, seen from outside."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.gateway.e2e.running_gateway import RunningGateway, model, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningGateway]:
    models = [model("a"), model("b"), model("c", vram="1g"), model("slow", "slow")]
    broken = {"broken": {"cmd": ["sh", "-c", "echo no such weights >&2; exit 3"]}}
    async with running_gateway(
        tmp_path_factory.mktemp("serial"), {one["cmd"][5]: one for one in models} | broken
    ) as made:
        yield made


async def test_a_cold_model_is_loaded_first_and_a_ready_one_serves_at_once(gateway: RunningGateway) -> None:
    (first,) = await gateway.answered(gateway.call("a", "1"))
    assert (first.status, first.text) == (200, "hello from a")
    (second,) = await gateway.answered(gateway.call("a", "2"))
    assert second.status == 200
    assert gateway.servers.diary() == ["load a", "a 1", "a 2"]


async def test_an_unknown_model_is_refused_at_once_and_nothing_is_loaded(gateway: RunningGateway) -> None:
    (answer,) = await gateway.answered(gateway.call("nobody"))
    assert (answer.status, answer.code) == (404, "model_not_found")
    assert gateway.servers.diary() == []


async def test_before_a_load_every_other_model_is_evicted_even_one_that_would_fit_beside(
    gateway: RunningGateway,
) -> None:
    await gateway.answered(gateway.call("c", "1"))
    await gateway.answered(gateway.call("a", "2"))
    running = (await gateway.ask("GET", "/running")).json["running"]
    assert [one["model"] for one in running] == ["a"]


async def test_while_one_request_is_served_the_next_waits_even_for_the_same_model(gateway: RunningGateway) -> None:
    first, second = gateway.hold("a", "1"), gateway.hold("a", "2")
    held = await gateway.servers.asked("1")
    await gateway.queued("a")
    assert not gateway.servers.has_been_asked("2")
    held.end("one")
    (await gateway.servers.asked("2")).end("two")
    assert [answer.text for answer in await gateway.answered(first, second)] == ["one", "two"]
    assert gateway.servers.loads() == 1


async def test_requests_are_never_reordered_or_batched(gateway: RunningGateway) -> None:
    calls = [gateway.hold("a", "1")]
    held = await gateway.servers.asked("1")
    for place, (name, tag) in enumerate((("b", "2"), ("c", "3"), ("a", "4")), 1):
        calls.append(gateway.call(name, tag))
        await gateway.queued(*["b", "c", "a"][:place])
    held.end("one")
    assert [answer.status for answer in await gateway.answered(*calls)] == [200] * 4
    assert gateway.servers.diary() == ["load a", "a 1", "load b", "b 2", "load c", "c 3", "load a", "a 4"]


async def test_a_failed_load_fails_its_caller_and_the_queue_goes_on(gateway: RunningGateway) -> None:
    failing, following = gateway.call("broken"), gateway.call("c", "2")
    failed, served = await gateway.answered(failing, following)
    assert (failed.status, failed.code) == (502, "model_load_failed")
    assert "exit code 3" in failed.message and "no such weights" not in failed.message
    assert served.status == 200


async def test_a_cancelled_request_is_removed_and_its_model_is_never_loaded_for_it(gateway: RunningGateway) -> None:
    first = gateway.hold("a", "1")
    held = await gateway.servers.asked("1")
    leaving = gateway.call("b", "2")
    await gateway.queued("b")
    last = gateway.call("a", "3")
    await gateway.queued("b", "a")
    leaving.cancel()
    await gateway.queued("a")
    held.end()
    await gateway.answered(first, last)
    assert gateway.servers.diary() == ["load a", "a 1", "a 3"]


async def test_a_caller_who_leaves_during_the_load_does_not_hold_up_the_queue(gateway: RunningGateway) -> None:
    leaving = gateway.call("slow", "1")
    await gateway.servers.began("slow")
    following = gateway.call("c", "2")
    await gateway.queued("slow", "c")
    leaving.cancel()
    (answer,) = await gateway.answered(following)
    assert answer.status == 200
    assert gateway.servers.diary() == ["load slow", "load c", "c 2"]


async def test_unloading_a_model_that_is_being_loaded_fails_its_caller_and_the_queue_goes_on(
    gateway: RunningGateway,
) -> None:
    loading = gateway.call("slow", "1")
    await gateway.servers.began("slow")
    following = gateway.call("a", "2")
    await gateway.queued("slow", "a")
    assert (await gateway.ask("POST", "/api/models/slow/unload")).json == {"unloaded": ["slow"]}
    failed, served = await gateway.answered(loading, following)
    assert (failed.status, failed.code) == (503, "unloaded")
    assert served.status == 200


async def test_queued_requests_for_an_unloaded_model_get_an_error(gateway: RunningGateway) -> None:
    first = gateway.hold("a", "1")
    held = await gateway.servers.asked("1")
    queued = gateway.call("b", "2")
    await gateway.queued("b")
    assert (await gateway.ask("POST", "/api/models/b/unload")).status == 200
    (refused,) = await gateway.answered(queued)
    assert (refused.status, refused.code) == (503, "unloaded")
    held.end("one")
    (served,) = await gateway.answered(first)
    assert served.text == "one"


async def test_unloading_a_model_that_serves_ends_it_and_then_the_queue_goes_on(gateway: RunningGateway) -> None:
    serving = gateway.hold("a", "1")
    await gateway.servers.asked("1")
    following = gateway.call("b", "2")
    await gateway.queued("b")
    unloading = asyncio.create_task(gateway.ask("POST", "/api/models/a/unload"))
    cut, served, unloaded = await gateway.answered(serving, following, unloading)
    assert cut.status in (502, 503)
    assert served.status == 200
    assert unloaded.json == {"unloaded": ["a"]}


async def test_the_late_end_of_an_abandoned_load_changes_nothing(gateway: RunningGateway) -> None:
    loading = gateway.call("slow", "1")
    await gateway.servers.began("slow")
    unloading = asyncio.create_task(gateway.ask("POST", "/api/models/unload"))
    gateway.servers.heal("slow")
    await gateway.answered(loading, unloading)
    again = gateway.call("slow", "2")
    await gateway.servers.began("slow", 2)
    assert not gateway.servers.has_been_asked("2")
    gateway.servers.heal("slow")
    (answer,) = await gateway.answered(again)
    assert answer.status == 200
    assert "slow 2" in gateway.servers.diary()


async def test_a_shutdown_tells_the_one_who_loads_and_all_who_wait(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, [model("slow", "slow"), model("a")]) as gateway:
        calls = [gateway.call("slow", "1")]
        await gateway.servers.began("slow")
        calls += [gateway.call("a", "2"), gateway.call("slow", "3")]
        await gateway.until(lambda: len(gateway.hub.gateway._waiting) == 3, "all wait")
        await gateway.hub.gateway.stop()
        answers = await gateway.answered(*calls)
        assert [(answer.status, answer.code) for answer in answers] == [(503, "shutting_down")] * 3
        assert gateway.hub.gateway._waiting == {}
