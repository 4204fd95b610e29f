"""The rules of `serial`, seen from outside."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.gateway.e2e.rig import Rig, model, rig

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    models = [model("a"), model("b"), model("c", vram="1g"), model("slow", "slow")]
    broken = {"broken": {"cmd": ["sh", "-c", "echo no such weights >&2; exit 3"]}}
    async with rig(tmp_path_factory.mktemp("serial"), {one["cmd"][5]: one for one in models} | broken) as made:
        yield made


async def test_a_cold_model_is_loaded_first_and_a_ready_one_serves_at_once(yard: Rig) -> None:
    (first,) = await yard.answered(yard.call("a", "1"))
    assert (first.status, first.text) == (200, "hello from a")
    (second,) = await yard.answered(yard.call("a", "2"))
    assert second.status == 200
    assert yard.stage.diary() == ["load a", "a 1", "a 2"]


async def test_an_unknown_model_is_refused_at_once_and_nothing_is_loaded(yard: Rig) -> None:
    (answer,) = await yard.answered(yard.call("nobody"))
    assert (answer.status, answer.code) == (404, "model_not_found")
    assert yard.stage.diary() == []


async def test_before_a_load_every_other_model_is_evicted_even_one_that_would_fit_beside(yard: Rig) -> None:
    await yard.answered(yard.call("c", "1"))
    await yard.answered(yard.call("a", "2"))
    running = (await yard.ask("GET", "/running")).json["running"]
    assert [one["model"] for one in running] == ["a"]


async def test_while_one_request_is_served_the_next_waits_even_for_the_same_model(yard: Rig) -> None:
    first, second = yard.hold("a", "1"), yard.hold("a", "2")
    held = await yard.stage.asked("1")
    await yard.queued("a")
    assert not yard.stage.has_been_asked("2")
    held.end("one")
    (await yard.stage.asked("2")).end("two")
    assert [answer.text for answer in await yard.answered(first, second)] == ["one", "two"]
    assert yard.stage.loads() == 1


async def test_requests_are_never_reordered_or_batched(yard: Rig) -> None:
    calls = [yard.hold("a", "1")]
    held = await yard.stage.asked("1")
    for place, (name, tag) in enumerate((("b", "2"), ("c", "3"), ("a", "4")), 1):
        calls.append(yard.call(name, tag))
        await yard.queued(*["b", "c", "a"][:place])
    held.end("one")
    assert [answer.status for answer in await yard.answered(*calls)] == [200] * 4
    assert yard.stage.diary() == ["load a", "a 1", "load b", "b 2", "load c", "c 3", "load a", "a 4"]


async def test_a_failed_load_fails_its_caller_and_the_queue_goes_on(yard: Rig) -> None:
    failing, following = yard.call("broken"), yard.call("c", "2")
    failed, served = await yard.answered(failing, following)
    assert (failed.status, failed.code) == (502, "model_load_failed")
    assert "no such weights" in failed.message
    assert served.status == 200


async def test_a_cancelled_request_is_removed_and_its_model_is_never_loaded_for_it(yard: Rig) -> None:
    first = yard.hold("a", "1")
    held = await yard.stage.asked("1")
    leaving = yard.call("b", "2")
    await yard.queued("b")
    last = yard.call("a", "3")
    await yard.queued("b", "a")
    leaving.cancel()
    await yard.queued("a")
    held.end()
    await yard.answered(first, last)
    assert yard.stage.diary() == ["load a", "a 1", "a 3"]


async def test_a_caller_who_leaves_during_the_load_does_not_hold_up_the_queue(yard: Rig) -> None:
    leaving = yard.call("slow", "1")
    await yard.stage.began("slow")
    following = yard.call("c", "2")
    await yard.queued("slow", "c")
    leaving.cancel()
    (answer,) = await yard.answered(following)
    assert answer.status == 200
    assert yard.stage.diary() == ["load slow", "load c", "c 2"]


async def test_unloading_a_model_that_is_being_loaded_fails_its_caller_and_the_queue_goes_on(yard: Rig) -> None:
    loading = yard.call("slow", "1")
    await yard.stage.began("slow")
    following = yard.call("a", "2")
    await yard.queued("slow", "a")
    assert (await yard.ask("POST", "/api/models/slow/unload")).json == {"unloaded": ["slow"]}
    failed, served = await yard.answered(loading, following)
    assert (failed.status, failed.code) == (503, "unloaded")
    assert served.status == 200


async def test_queued_requests_for_an_unloaded_model_get_an_error(yard: Rig) -> None:
    first = yard.hold("a", "1")
    held = await yard.stage.asked("1")
    queued = yard.call("b", "2")
    await yard.queued("b")
    assert (await yard.ask("POST", "/api/models/b/unload")).status == 200
    (refused,) = await yard.answered(queued)
    assert (refused.status, refused.code) == (503, "unloaded")
    held.end("one")
    (served,) = await yard.answered(first)
    assert served.text == "one"


async def test_unloading_a_model_that_serves_ends_it_and_then_the_queue_goes_on(yard: Rig) -> None:
    serving = yard.hold("a", "1")
    await yard.stage.asked("1")
    following = yard.call("b", "2")
    await yard.queued("b")
    unloading = asyncio.create_task(yard.ask("POST", "/api/models/a/unload"))
    cut, served, unloaded = await yard.answered(serving, following, unloading)
    assert cut.status in (502, 503)
    assert served.status == 200
    assert unloaded.json == {"unloaded": ["a"]}


async def test_the_late_end_of_an_abandoned_load_changes_nothing(yard: Rig) -> None:
    loading = yard.call("slow", "1")
    await yard.stage.began("slow")
    unloading = asyncio.create_task(yard.ask("POST", "/api/models/unload"))
    yard.stage.heal("slow")
    await yard.answered(loading, unloading)
    again = yard.call("slow", "2")
    await yard.stage.began("slow", 2)
    assert not yard.stage.has_been_asked("2")
    yard.stage.heal("slow")
    (answer,) = await yard.answered(again)
    assert answer.status == 200
    assert "slow 2" in yard.stage.diary()


async def test_a_shutdown_tells_the_one_who_loads_and_all_who_wait(tmp_path: Path) -> None:
    async with rig(tmp_path, [model("slow", "slow"), model("a")]) as yard:
        calls = [yard.call("slow", "1")]
        await yard.stage.began("slow")
        calls += [yard.call("a", "2"), yard.call("slow", "3")]
        await yard.until(lambda: len(yard.gateway._waiting) == 3, "all wait")
        await yard.gateway.stop()
        answers = await yard.answered(*calls)
        assert [(answer.status, answer.code) for answer in answers] == [(503, "shutting_down")] * 3
        assert yard.gateway._waiting == {}
