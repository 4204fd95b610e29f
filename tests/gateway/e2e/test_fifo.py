"""The rules of `fifo`, seen from outside, and its hot path."""

import asyncio
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.gateway.e2e.running_gateway import API_KEY, CHAT, Answer, RunningGateway, first_data, model, running_gateway

from ostler.core.models import holder
from ostler.gateway import control

pytestmark = pytest.mark.asyncio(loop_scope="module")
CALLS = 60
"""Of each caller in a closed loop."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningGateway]:
    models = [
        *(model("a"), model("b"), model("c"), model("slow", "slow")),
        *(model("small", vram="2g"), model("lesser", "slow", vram="2g")),
        *(model("one", vram="2g", concurrency=1, queue_limit=1), model("urgent", priority=5)),
        *(model("left alone", concurrency=1), model("right alone", concurrency=1)),
        model("few", vram="2g", request_limit=2),
        *(model("left", vram="2g"), model("right", vram="2g"), model("pair", vram="2g", concurrency=2)),
    ]
    groups = {"pair": {"members": ["left", "right"]}}
    keys = [API_KEY, *({"key": f"key-of-{user}", "user": user} for user in ("ann", "bob"))]
    async with running_gateway(
        tmp_path_factory.mktemp("fifo"), models, scheduler="fifo", groups=groups, api_keys=keys
    ) as made:
        yield made


async def test_an_unknown_model_is_refused_at_once(gateway: RunningGateway) -> None:
    (answer,) = await gateway.answered(gateway.call("nobody"))
    assert (answer.status, answer.code) == (404, "model_not_found")


async def test_over_its_queue_limit_a_request_is_turned_away_before_any_byte_of_a_stream(
    gateway: RunningGateway,
) -> None:
    serving = gateway.hold("one", "1")
    held = await gateway.servers.asked("1")
    waiting = gateway.call("one", "2")
    await gateway.queued("one")
    async with gateway.stream("one", "3") as refused:
        assert refused.status == 429
        assert int(refused.headers["Retry-After"]) >= 1
        assert (await refused.json())["error"]["code"] == "queue_full"
    held.end()
    assert [answer.status for answer in await gateway.answered(serving, waiting)] == [200, 200]


async def test_over_its_request_limit_a_request_is_turned_away_though_its_model_could_serve_it(
    gateway: RunningGateway,
) -> None:
    await gateway.answered(gateway.call("few", "0"))
    serving = [gateway.hold("few", str(number)) for number in (1, 2)]
    held = [await gateway.servers.asked(str(number)) for number in (1, 2)]
    async with gateway.stream("few", "3") as refused:
        assert refused.status == 429
        assert int(refused.headers["Retry-After"]) >= 1
        assert (await refused.json())["error"]["code"] == "request_limit_reached"
    held[0].end()
    await gateway.answered(serving[0])
    assert [answer.status for answer in await gateway.answered(gateway.call("few", "4"))] == [200]
    held[1].end()
    await gateway.answered(serving[1])
    assert (await gateway.remembered("few")).json["activity"][0]["status"] == 200
    counted = (await gateway.ask_hub("GET", "/metrics")).body.decode()
    assert 'ostler_model_requests_total{model="few",status="429"} 1.0' in counted


async def test_all_who_want_a_model_that_is_being_loaded_share_one_load(gateway: RunningGateway) -> None:
    calls = [gateway.call("slow", str(number)) for number in range(4)]
    await gateway.servers.began("slow")
    await gateway.queued(*["slow"] * 4)
    gateway.servers.heal("slow")
    assert [answer.status for answer in await gateway.answered(*calls)] == [200] * 4
    assert gateway.servers.loads() == 1


async def test_a_ready_model_serves_many_at_once(gateway: RunningGateway) -> None:
    calls = [gateway.hold("a", str(number)) for number in range(3)]
    held = [await gateway.servers.asked(str(number)) for number in range(3)]
    for one in reversed(held):
        one.end(one.tag)
    assert [answer.text for answer in await gateway.answered(*calls)] == ["0", "1", "2"]


async def test_a_model_with_a_limit_serves_no_more_than_that(gateway: RunningGateway) -> None:
    first = gateway.hold("one", "1")
    held = await gateway.servers.asked("1")
    second = gateway.hold("one", "2")
    await gateway.queued("one")
    assert not gateway.servers.has_been_asked("2")
    held.end()
    (await gateway.servers.asked("2")).end()
    await gateway.answered(first, second)


async def test_of_those_who_wait_for_one_model_the_user_with_the_fewest_requests_served_is_next(
    gateway: RunningGateway,
) -> None:
    def hold(user: str, tag: str) -> "asyncio.Task[Answer]":
        body = {"model": "pair", "hold": tag, "messages": []}
        return asyncio.create_task(gateway.ask("POST", CHAT, body, token=f"key-of-{user}"))

    calls = [hold("ann", "1"), hold("ann", "2")]
    held = [await gateway.servers.asked(tag) for tag in ("1", "2")]
    calls.append(hold("ann", "3"))
    await gateway.queued("pair")
    calls.append(hold("bob", "4"))
    await gateway.queued("pair", "pair")
    held[0].end()
    (await gateway.servers.asked("4")).end("bob's")
    (await gateway.servers.asked("3")).end("ann's")
    held[1].end()
    answers = await gateway.answered(*calls)
    assert [answer.text for answer in answers] == ["", "", "ann's", "bob's"]
    diary = gateway.servers.diary()
    assert diary.index("pair 4") < diary.index("pair 3")


async def test_a_model_that_serves_is_never_killed_for_a_load(gateway: RunningGateway) -> None:
    serving = gateway.hold("a", "1")
    held = await gateway.servers.asked("1")
    waiting = gateway.call("b", "2")
    await gateway.queued("b")
    assert "serving" in (await gateway.queue())[0]["why"]
    assert gateway.servers.loads() == 1
    held.end("to the end")
    first, second = await gateway.answered(serving, waiting)
    assert (first.text, second.status) == ("to the end", 200)


async def test_loads_that_do_not_collide_run_side_by_side(gateway: RunningGateway) -> None:
    calls = [gateway.call("slow", "1"), gateway.call("lesser", "2")]
    await gateway.servers.began("slow")
    await gateway.servers.began("lesser")
    gateway.servers.heal("lesser")
    gateway.servers.heal("slow")
    assert [answer.status for answer in await gateway.answered(*calls)] == [200, 200]


async def test_those_who_wait_for_the_same_model_are_served_by_one_load(gateway: RunningGateway) -> None:
    calls = [gateway.hold("slow", "0")]
    await gateway.servers.began("slow")
    for name, tag in (("a", "1"), ("b", "2"), ("a", "3"), ("b", "4")):
        calls.append(gateway.call(name, tag))
        await gateway.queued("slow", *["a", "b", "a", "b"][: len(calls) - 1])
    gateway.servers.heal("slow")
    (await gateway.servers.asked("0")).end()
    assert [answer.status for answer in await gateway.answered(*calls)] == [200] * 5
    assert gateway.servers.diary() == ["load slow", "slow 0", "load a", "a 1", "a 3", "load b", "b 2", "b 4"]


async def test_the_more_urgent_model_is_loaded_first(gateway: RunningGateway) -> None:
    calls = [gateway.hold("a", "0")]
    held = await gateway.servers.asked("0")
    calls += [gateway.call("b", "1")]
    await gateway.queued("b")
    calls += [gateway.call("urgent", "2")]
    await gateway.queued("urgent", "b")
    held.end()
    await gateway.answered(*calls)
    assert gateway.servers.diary() == ["load a", "a 0", "load urgent", "urgent 2", "load b", "b 1"]


async def test_of_a_group_one_member_is_loaded_at_a_time_however_much_room_there_is(gateway: RunningGateway) -> None:
    await gateway.answered(gateway.call("left", "1"))
    await gateway.answered(gateway.call("right", "2"))
    running = (await gateway.ask("GET", "/running")).json["running"]
    assert [one["model"] for one in running if one["state"] == "ready"] == ["right"]


async def test_a_thousand_requests_to_a_ready_model_are_served_without_asking(gateway: RunningGateway) -> None:
    await gateway.answered(gateway.call("small", "first"))
    gateway.heard.clear()
    for _ in range(40):
        answers = await gateway.answered(*(gateway.call("small") for _ in range(25)))
        assert {answer.status for answer in answers} == {200}
    await gateway.until(lambda: _served(gateway, "small") == 1001, "the hub has heard of all of them")
    assert [one for one in gateway.heard if isinstance(one, control.Arrived)] == []


async def test_an_eviction_waits_for_a_stream_that_went_through_an_open_gate(gateway: RunningGateway) -> None:
    await gateway.answered(gateway.call("a", "first"))
    gateway.heard.clear()
    async with gateway.stream("a", "1") as answer:
        held = await gateway.servers.asked("1")
        held.say("begun")
        assert b"begun" in await first_data(answer)
        assert not any(isinstance(one, control.Arrived) for one in gateway.heard)
        waiting = gateway.call("b", "2")
        await gateway.queued("b")
        also = gateway.call("a", "3")
        assert (await gateway.answered(also))[0].status == 200
        assert [one.model for one in gateway.heard if isinstance(one, control.Arrived)] == ["b"], "the gate is open"
        assert gateway.servers.loads("b") == 0
        held.end("ended")
        assert b"ended" in await answer.content.read()
    assert (await gateway.answered(waiting))[0].status == 200


async def test_a_model_that_is_unloaded_while_its_gate_is_open_is_not_loaded_again_for_who_was_there(
    gateway: RunningGateway,
) -> None:
    await gateway.answered(gateway.call("a", "1"))
    await gateway.until(lambda: gateway.instance("a").gate == "open", "the gate is open")
    serving = gateway.hold("a", "2")
    await gateway.servers.asked("2")
    await gateway.ask("POST", "/api/models/a/unload")
    (cut,) = await gateway.answered(serving)
    assert (cut.status, cut.code) == (503, "unloaded")
    assert gateway.servers.loads("a") == 1


async def test_a_model_that_is_unloaded_before_its_worker_has_heard_of_it_is_gone_and_can_be_loaded(
    gateway: RunningGateway,
) -> None:
    def assigned() -> bool:
        found = gateway.hub.gateway.instances.foremost("a")
        return found is not None and holder(gateway.hub.loop.fleet, found.job_id) is not None

    gateway._workers["box"].send_signal(signal.SIGSTOP)
    try:
        refused = gateway.call("a", "1")
        await gateway.until(assigned, "it has a place")
        unloading = asyncio.create_task(gateway.ask("POST", "/api/models/a/unload"))
        assert (await gateway.answered(refused))[0].code == "unloaded"
    finally:
        gateway._workers["box"].send_signal(signal.SIGCONT)
    assert (await gateway.answered(unloading))[0].json == {"unloaded": ["a"]}
    assert (await gateway.answered(gateway.call("a", "2")))[0].status == 200


async def test_a_hub_that_stops_lets_end_what_is_served_and_serves_nobody_who_was_refused(tmp_path: Path) -> None:
    models = [model("one", concurrency=1, vram="1g"), model("long", vram="1g")]
    async with running_gateway(tmp_path, models, scheduler="fifo") as gateway:
        calls = [gateway.hold("one", "1"), gateway.hold("long", "2")]
        first, second = [await gateway.servers.asked(tag) for tag in ("1", "2")]
        refused = gateway.hold("one", "3")
        await gateway.queued("one")
        stopping = asyncio.create_task(gateway.hub.gateway.stop())
        assert (await gateway.answered(refused))[0].code == "shutting_down"
        first.end("one")
        assert (await gateway.answered(calls[0]))[0].text == "one"
        await gateway.until(
            lambda: any(isinstance(one, control.Done) for one in gateway.heard), "the hub has heard of it"
        )
        second.end("two")
        assert (await gateway.answered(calls[1]))[0].text == "two"
        await stopping
        assert not gateway.servers.has_been_asked("3")


async def test_the_gate_opens_again_when_nobody_waits(gateway: RunningGateway) -> None:
    serving = gateway.hold("a", "1")
    held = await gateway.servers.asked("1")
    waiting = gateway.call("b", "2")
    await gateway.queued("b")
    held.end()
    await gateway.answered(serving, waiting)
    await gateway.until(lambda: gateway.instance("b").gate == "open", "the gate of b is open")
    gateway.heard.clear()
    await gateway.answered(gateway.call("b", "3"))
    assert not any(isinstance(one, control.Arrived) for one in gateway.heard)


async def test_a_model_that_nobody_uses_offers_its_room(gateway: RunningGateway) -> None:
    await gateway.answered(gateway.call("small", "1"))
    instance = gateway.instance("small")
    await gateway.until(lambda: instance.priced, "the room of small has a price")


def _served(gateway: RunningGateway, name: str) -> int:
    return gateway.instance(name).served


async def test_two_models_in_one_place_are_loaded_far_less_often_than_they_are_called(gateway: RunningGateway) -> None:
    async def loads() -> int:
        metrics = (await gateway.ask_hub("GET", "/metrics")).body.decode()
        counts = re.findall(
            r'^ostler_model_load_seconds_count\{model="(?:left|right) alone"\} (\S+)', metrics, re.MULTILINE
        )
        return sum(int(float(count)) for count in counts)

    async def calls(name: str) -> list[Answer]:
        return [answer for _ in range(CALLS) for answer in await gateway.answered(gateway.call(name))]

    before = await loads()
    answers = [
        each
        for some in await asyncio.gather(*(calls(name) for name in 3 * ["left alone", "right alone"]))
        for each in some
    ]
    assert {answer.status for answer in answers} == {200}
    assert 2 <= (await loads()) - before <= len(answers) / 10
