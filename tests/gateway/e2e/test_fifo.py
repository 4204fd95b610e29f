"""The rules of `fifo`, seen from outside, and its hot path."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.gateway.e2e.rig import API_KEY, CHAT, Answer, Rig, model, rig

from ostler.core.models import holder
from ostler.gateway import control

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    models = [
        *(model("a"), model("b"), model("c"), model("slow", "slow")),
        *(model("small", vram="2g"), model("lesser", "slow", vram="2g")),
        *(model("one", vram="2g", concurrency=1, queue_limit=1), model("urgent", priority=5)),
        *(model("left", vram="2g"), model("right", vram="2g"), model("pair", vram="2g", concurrency=2)),
    ]
    groups = {"pair": {"members": ["left", "right"]}}
    keys = [API_KEY, *({"key": f"key-of-{user}", "user": user} for user in ("ann", "bob"))]
    async with rig(tmp_path_factory.mktemp("fifo"), models, scheduler="fifo", groups=groups, api_keys=keys) as made:
        yield made


async def test_an_unknown_model_is_refused_at_once(yard: Rig) -> None:
    (answer,) = await yard.answered(yard.call("nobody"))
    assert (answer.status, answer.code) == (404, "model_not_found")


async def test_over_its_queue_limit_a_request_is_turned_away_before_any_byte_of_a_stream(yard: Rig) -> None:
    serving = yard.hold("one", "1")
    held = await yard.stage.asked("1")
    waiting = yard.call("one", "2")
    await yard.queued("one")
    async with yard.stream("one", "3") as refused:
        assert refused.status == 429
        assert int(refused.headers["Retry-After"]) >= 1
        assert (await refused.json())["error"]["code"] == "queue_full"
    held.end()
    assert [answer.status for answer in await yard.answered(serving, waiting)] == [200, 200]


async def test_all_who_want_a_model_that_is_being_loaded_share_one_load(yard: Rig) -> None:
    calls = [yard.call("slow", str(number)) for number in range(4)]
    await yard.stage.began("slow")
    await yard.queued(*["slow"] * 4)
    yard.stage.heal("slow")
    assert [answer.status for answer in await yard.answered(*calls)] == [200] * 4
    assert yard.stage.loads() == 1


async def test_a_ready_model_serves_many_at_once(yard: Rig) -> None:
    calls = [yard.hold("a", str(number)) for number in range(3)]
    held = [await yard.stage.asked(str(number)) for number in range(3)]
    for one in reversed(held):
        one.end(one.tag)
    assert [answer.text for answer in await yard.answered(*calls)] == ["0", "1", "2"]


async def test_a_model_with_a_limit_serves_no_more_than_that(yard: Rig) -> None:
    first = yard.hold("one", "1")
    held = await yard.stage.asked("1")
    second = yard.hold("one", "2")
    await yard.queued("one")
    assert not yard.stage.has_been_asked("2")
    held.end()
    (await yard.stage.asked("2")).end()
    await yard.answered(first, second)


async def test_of_those_who_wait_for_one_model_the_user_with_the_fewest_requests_served_is_next(yard: Rig) -> None:
    def hold(user: str, tag: str) -> "asyncio.Task[Answer]":
        body = {"model": "pair", "hold": tag, "messages": []}
        return asyncio.create_task(yard.ask("POST", CHAT, body, token=f"key-of-{user}"))

    calls = [hold("ann", "1"), hold("ann", "2")]
    held = [await yard.stage.asked(tag) for tag in ("1", "2")]
    calls.append(hold("ann", "3"))
    await yard.queued("pair")
    calls.append(hold("bob", "4"))
    await yard.queued("pair", "pair")
    held[0].end()
    (await yard.stage.asked("4")).end("bob's")
    (await yard.stage.asked("3")).end("ann's")
    held[1].end()
    answers = await yard.answered(*calls)
    assert [answer.text for answer in answers] == ["", "", "ann's", "bob's"]
    diary = yard.stage.diary()
    assert diary.index("pair 4") < diary.index("pair 3")


async def test_a_model_that_serves_is_never_killed_for_a_load(yard: Rig) -> None:
    serving = yard.hold("a", "1")
    held = await yard.stage.asked("1")
    waiting = yard.call("b", "2")
    await yard.queued("b")
    assert "serving" in (await yard.queue())[0]["why"]
    assert yard.stage.loads() == 1
    held.end("to the end")
    first, second = await yard.answered(serving, waiting)
    assert (first.text, second.status) == ("to the end", 200)


async def test_loads_that_do_not_collide_run_side_by_side(yard: Rig) -> None:
    calls = [yard.call("slow", "1"), yard.call("lesser", "2")]
    await yard.stage.began("slow")
    await yard.stage.began("lesser")
    yard.stage.heal("lesser")
    yard.stage.heal("slow")
    assert [answer.status for answer in await yard.answered(*calls)] == [200, 200]


async def test_those_who_wait_for_the_same_model_are_served_by_one_load(yard: Rig) -> None:
    calls = [yard.hold("slow", "0")]
    await yard.stage.began("slow")
    for name, tag in (("a", "1"), ("b", "2"), ("a", "3"), ("b", "4")):
        calls.append(yard.call(name, tag))
        await yard.queued("slow", *["a", "b", "a", "b"][: len(calls) - 1])
    yard.stage.heal("slow")
    (await yard.stage.asked("0")).end()
    assert [answer.status for answer in await yard.answered(*calls)] == [200] * 5
    assert yard.stage.diary() == ["load slow", "slow 0", "load a", "a 1", "a 3", "load b", "b 2", "b 4"]


async def test_the_more_urgent_model_is_loaded_first(yard: Rig) -> None:
    calls = [yard.hold("a", "0")]
    held = await yard.stage.asked("0")
    calls += [yard.call("b", "1")]
    await yard.queued("b")
    calls += [yard.call("urgent", "2")]
    await yard.queued("urgent", "b")
    held.end()
    await yard.answered(*calls)
    assert yard.stage.diary() == ["load a", "a 0", "load urgent", "urgent 2", "load b", "b 1"]


async def test_of_a_group_one_member_is_loaded_at_a_time_however_much_room_there_is(yard: Rig) -> None:
    await yard.answered(yard.call("left", "1"))
    await yard.answered(yard.call("right", "2"))
    running = (await yard.ask("GET", "/running")).json["running"]
    assert [one["model"] for one in running if one["state"] == "ready"] == ["right"]


async def test_a_thousand_requests_to_a_ready_model_are_served_without_asking(yard: Rig) -> None:
    await yard.answered(yard.call("small", "first"))
    yard.heard.clear()
    for _ in range(40):
        answers = await yard.answered(*(yard.call("small") for _ in range(25)))
        assert {answer.status for answer in answers} == {200}
    await yard.until(lambda: _served(yard, "small") == 1001, "the hub has heard of all of them")
    assert [one for one in yard.heard if isinstance(one, control.Arrived)] == []


async def test_an_eviction_waits_for_a_stream_that_went_through_an_open_gate(yard: Rig) -> None:
    await yard.answered(yard.call("a", "first"))
    yard.heard.clear()
    async with yard.stream("a", "1") as answer:
        held = await yard.stage.asked("1")
        held.say("begun")
        assert b"begun" in await answer.content.readline()
        assert not any(isinstance(one, control.Arrived) for one in yard.heard)
        waiting = yard.call("b", "2")
        await yard.queued("b")
        also = yard.call("a", "3")
        assert (await yard.answered(also))[0].status == 200
        assert [one.model for one in yard.heard if isinstance(one, control.Arrived)] == ["b", "a"]
        assert yard.stage.loads("b") == 0
        held.end("ended")
        assert b"ended" in await answer.content.read()
    assert (await yard.answered(waiting))[0].status == 200


async def test_a_model_that_is_unloaded_while_its_gate_is_open_is_not_loaded_again_for_who_was_there(yard: Rig) -> None:
    await yard.answered(yard.call("a", "1"))
    await yard.until(lambda: yard.instance("a").gate == "open", "the gate is open")
    serving = yard.hold("a", "2")
    await yard.stage.asked("2")
    await yard.ask("POST", "/api/models/a/unload")
    (cut,) = await yard.answered(serving)
    assert (cut.status, cut.code) == (503, "unloaded")
    assert yard.stage.loads("a") == 1


async def test_a_model_that_is_unloaded_before_its_worker_has_heard_of_it_is_gone_and_can_be_loaded(yard: Rig) -> None:
    def assigned() -> bool:
        found = yard.gateway.instances.foremost("a")
        return found is not None and holder(yard.hub.loop.fleet, found.job_id) is not None

    assert yard._worker is not None
    yard._worker.send_signal(signal.SIGSTOP)
    try:
        refused = yard.call("a", "1")
        await yard.until(assigned, "it has a place")
        unloading = asyncio.create_task(yard.ask("POST", "/api/models/a/unload"))
        assert (await yard.answered(refused))[0].code == "unloaded"
    finally:
        yard._worker.send_signal(signal.SIGCONT)
    assert (await yard.answered(unloading))[0].json == {"unloaded": ["a"]}
    assert (await yard.answered(yard.call("a", "2")))[0].status == 200


async def test_a_hub_that_stops_lets_end_what_is_served_and_serves_nobody_who_was_refused(tmp_path: Path) -> None:
    models = [model("one", concurrency=1, vram="1g"), model("long", vram="1g")]
    async with rig(tmp_path, models, scheduler="fifo") as yard:
        calls = [yard.hold("one", "1"), yard.hold("long", "2")]
        first, second = [await yard.stage.asked(tag) for tag in ("1", "2")]
        refused = yard.hold("one", "3")
        await yard.queued("one")
        stopping = asyncio.create_task(yard.gateway.stop())
        assert (await yard.answered(refused))[0].code == "shutting_down"
        first.end("one")
        assert (await yard.answered(calls[0]))[0].text == "one"
        await yard.until(lambda: any(isinstance(one, control.Done) for one in yard.heard), "the hub has heard of it")
        second.end("two")
        assert (await yard.answered(calls[1]))[0].text == "two"
        await stopping
        assert not yard.stage.has_been_asked("3")


async def test_the_gate_opens_again_when_nobody_waits(yard: Rig) -> None:
    serving = yard.hold("a", "1")
    held = await yard.stage.asked("1")
    waiting = yard.call("b", "2")
    await yard.queued("b")
    held.end()
    await yard.answered(serving, waiting)
    await yard.until(lambda: yard.instance("b").gate == "open", "the gate of b is open")
    yard.heard.clear()
    await yard.answered(yard.call("b", "3"))
    assert not any(isinstance(one, control.Arrived) for one in yard.heard)


async def test_a_model_that_nobody_uses_offers_its_room(yard: Rig) -> None:
    await yard.answered(yard.call("small", "1"))
    instance = yard.instance("small")
    await yard.until(lambda: instance.priced, "the room of small has a price")


def _served(yard: Rig, name: str) -> int:
    return yard.instance(name).served
