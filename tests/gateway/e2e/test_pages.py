"""What the gateway shows of itself, and who may do what there."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio
from tests.gateway.e2e.rig import API_KEY, CHAT, Rig, model, rig
from tests.gateway.e2e.stage import WAIT_S

from ostler.hub.gateway.pages import SHOWN_BYTES

pytestmark = pytest.mark.asyncio(loop_scope="module")
LOG = ("GET", "/logs/stream/a")
TALKER = ["sh", "-c", "echo the weights are read; exec sleep 600"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    models = {
        "a": model("a", aliases=["org/a"], description="the first"),
        "b": model("b"),
        "hidden": model("hidden", unlisted=True),
        "brief": model("brief", vram="1g", ttl=0.3),
        "small": model("small", vram="1g"),
        "talker": {"cmd": TALKER, "vram": "1g"},
    }
    async with rig(tmp_path_factory.mktemp("pages"), models, scheduler="fifo") as made:
        yield made


async def test_models_are_listed_with_whether_they_are_loaded(yard: Rig) -> None:
    await yard.answered(yard.call("a", "1"))
    listed = (await yard.ask("GET", "/v1/models")).json
    assert listed["object"] == "list"
    states = {one["id"]: one["status"]["value"] for one in listed["data"]}
    assert states["a"] == "loaded"
    assert states["b"] == "unloaded"
    assert "hidden" not in states


async def test_what_runs_is_shown(yard: Rig) -> None:
    serving = yard.hold("a", "1")
    held = await yard.stage.asked("1")
    (one,) = (await yard.ask("GET", "/running")).json["running"]
    assert (one["model"], one["state"], one["worker"], one["in_flight"]) == ("a", "ready", "box", 1)
    held.end()
    await yard.answered(serving)


async def test_models_are_loaded_and_unloaded_by_hand(yard: Rig) -> None:
    assert (await yard.ask("POST", "/api/models/org%2Fa/load")).json == {"loading": ["a"]}
    await yard.is_state("a", "ready")
    assert (await yard.ask("POST", "/api/models/org/a/unload")).json == {"unloaded": ["a"]}
    assert await yard.state_of("a") == "stopped"
    await yard.answered(yard.call("a", "1"), yard.call("small", "2"))
    assert set((await yard.ask("POST", "/api/models/unload")).json["unloaded"]) == {"a", "small"}
    await yard.answered(yard.call("small", "3"))
    assert (await yard.ask("GET", "/unload")).json == {"unloaded": ["small"]}
    assert (await yard.ask("POST", "/api/models/nobody/unload")).status == 404


async def test_a_load_by_hand_has_an_idle_model_make_room(yard: Rig) -> None:
    await yard.answered(yard.call("a", "1"))
    assert (await yard.ask("POST", "/api/models/b/load")).json == {"loading": ["b"]}
    await yard.is_state("b", "ready")
    assert await yard.state_of("a") == "stopped"
    assert (await yard.queue(), yard.stage.diary()) == ([], ["load a", "a 1", "load b"])


async def test_a_load_by_hand_waits_for_what_is_served_and_says_so(yard: Rig) -> None:
    serving = yard.hold("a", "1")
    held = await yard.stage.asked("1")
    waits = (await yard.ask_hub("POST", "/v1/models/b/load")).json
    assert (waits["state"], waits["queued"]) == ("stopped", 1)
    assert "'a' is in its room and is serving" in waits["waits_for"]
    held.end()
    await yard.answered(serving)
    await yard.is_state("b", "ready")


async def test_a_load_that_is_asked_for_twice_is_one_and_says_nothing_of_how_long_serving_takes(yard: Rig) -> None:
    serving = yard.hold("a", "1")
    held = await yard.stage.asked("1")
    before = yard.gateway.scheduler.state.learnt["b"].serve_s
    for _ in range(2):
        waits = (await yard.ask_hub("POST", "/v1/models/b/load")).json
    assert waits["queued"] == 1
    held.end()
    await yard.answered(serving)
    await yard.is_state("b", "ready")
    await yard.until(lambda: not yard.gateway.scheduler.state.flights, "it is over")
    assert yard.gateway.scheduler.state.learnt["b"].serve_s == before


async def test_the_jobs_in_the_way_of_many_who_wait_for_one_model_are_looked_for_once(
    yard: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    look = yard.gateway.jobs_in_the_way

    def looks(model: str) -> list[str]:
        looked.append(model)
        return look(model)

    monkeypatch.setattr(yard.gateway, "jobs_in_the_way", looks)
    serving = yard.hold("a", "1")
    held = await yard.stage.asked("1")
    calls = [yard.call("b", str(number)) for number in range(3)]
    await yard.queued("b", "b", "b")
    looked.clear()
    assert len(await yard.queue()) == 3 and looked == ["b"]
    held.end()
    await yard.answered(serving, *calls)


async def test_any_path_of_a_models_server_is_reached_through_upstream(yard: Rig) -> None:
    answer = await yard.ask("GET", "/upstream/a/props?x=1")
    assert answer.status == 200
    assert yard.stage.news[-1]["path"] == "/props?x=1"


async def test_the_log_of_a_model_is_streamed_while_it_runs(yard: Rig) -> None:
    await yard.ask("POST", "/api/models/talker/load")
    await yard.is_state("talker", "loading")
    await yard.until(lambda: yard.instance("talker").attempt, "talker has a process")
    async with yard._request("GET", f"{yard.calls}/logs/stream/talker", None, None, None) as answer:
        assert answer.status == 200
        async with asyncio.timeout(WAIT_S):
            assert await answer.content.readline() == b"the weights are read\n"
        await yard.ask("POST", "/api/models/talker/unload")
        async with asyncio.timeout(WAIT_S):
            assert await answer.content.read() == b""
    assert (await yard.ask("GET", "/logs/stream/talker")).status == 404


async def test_the_stream_of_a_long_log_begins_with_its_end_and_is_not_cut(yard: Rig) -> None:
    await yard.ask("POST", "/api/models/talker/load")
    await yard.until(lambda: (one := yard.gateway.instances.foremost("talker")) and one.attempt, "it has a process")
    attempt, logs = yard.instance("talker").attempt, yard.hub.logs
    await logs.append(attempt, logs.store.size(attempt), b"x" * 2**25 + b"\nthe end\n")
    async with (
        asyncio.timeout(WAIT_S),
        yard._request("GET", f"{yard.calls}/logs/stream/talker", None, None, None) as log,
    ):
        shown = b""
        while not shown.endswith(b"\nthe end\n"):
            shown += await log.content.readany()
            assert shown and len(shown) <= SHOWN_BYTES
    assert len(shown) == SHOWN_BYTES


async def _swaps(yard: Rig, name: str) -> tuple[int, int]:
    """How often the model has come and gone, as its page shows it."""
    listed = (await yard.ask_hub("GET", "/v1/models")).json["models"]
    told = next(one for one in listed if one["name"] == name)
    return told["loads"], told["stops"]


async def test_each_model_is_measured(yard: Rig) -> None:
    serving = yard.hold("a", "1")
    held = await yard.stage.asked("1")
    waiting = yard.call("b", "2")
    await yard.queued("b")
    assert 'ostler_model_in_flight{model="a"} 1.0' in await _metrics(yard)
    assert 'ostler_model_queued{model="b"} 1.0' in await _metrics(yard)
    before = await _measured(yard, 'ostler_model_evictions_total{model="a",reason="evicted"}')
    loads, stops = await _swaps(yard, "a")
    assert loads > 0
    held.end()
    await yard.answered(serving, waiting)
    assert await _measured(yard, 'ostler_model_evictions_total{model="a",reason="evicted"}') == before + 1
    assert await _measured(yard, 'ostler_model_requests_total{model="b",status="200"}') >= 1
    assert await _measured(yard, 'ostler_model_tokens_total{kind="completion",model="b"}') >= 2
    assert await _measured(yard, 'ostler_model_load_seconds_sum{model="b"}') > 0
    assert await _measured(yard, 'ostler_model_queue_seconds_sum{model="b"}') > 0
    assert await _swaps(yard, "a") == (loads, stops + 1)
    assert await _measured(yard, 'ostler_model_first_byte_seconds_count{model="b"}') >= 1


async def test_a_model_that_was_idle_for_its_ttl_is_unloaded(yard: Rig) -> None:
    await yard.answered(yard.call("brief", "1"))
    await yard.is_state("brief", "stopped")


async def test_a_model_that_is_pinned_stays_until_it_is_unpinned(yard: Rig) -> None:
    await yard.answered(yard.call("a", "1"))
    assert (await yard.ask_hub("POST", "/v1/models/a/pin")).json["pinned"] is True
    waiting = yard.call("b", "2")
    await yard.queued("b")
    assert "pinned" in (await yard.queue())[0]["why"]
    assert (await yard.ask_hub("POST", "/v1/models/a/unpin")).json["pinned"] is False
    (answer,) = await yard.answered(waiting)
    assert answer.status == 200
    assert yard.stage.loads("a") == 1


async def test_a_key_of_the_configuration_calls_models_and_operates_nothing(yard: Rig) -> None:
    body = {"model": "a", "messages": []}
    assert (await yard.ask("POST", CHAT, body, token=API_KEY)).status == 200
    assert (await yard.ask("GET", "/running", token=API_KEY)).status == 200
    for method, path in (("POST", "/api/models/a/unload"), ("POST", "/api/models/a/load"), ("GET", "/unload"), LOG):
        assert (await yard.ask(method, path, token=API_KEY)).status == 403
    assert await yard.state_of("a") == "ready"


async def test_a_new_token_calls_models_and_a_revoked_one_does_no_more(yard: Rig) -> None:
    made = (await yard.ask_hub("POST", "/v1/tokens", {"role": "user", "user": "ann"})).json
    viewer = (await yard.ask_hub("POST", "/v1/tokens", {"role": "viewer", "user": "eve"})).json
    await yard.until(lambda: _status(yard, made["token"], 200), "the new token opens")
    assert (await yard.ask("POST", "/api/models/a/unload", token=made["token"])).status == 200
    assert await _status(yard, viewer["token"], 401)
    await yard.ask_hub("DELETE", f"/v1/tokens/{made['id']}")
    await yard.until(lambda: _status(yard, made["token"], 401), "the revoked token opens nothing")


async def _status(yard: Rig, token: str, status: int) -> bool:
    try:
        return (await yard.ask("POST", CHAT, {"model": "small", "messages": []}, token=token)).status == status
    except aiohttp.ClientConnectionError:
        return False  # what a revoked token had open is cut, and a request may be on its way there


async def _metrics(yard: Rig) -> str:
    return (await yard.ask_hub("GET", "/metrics")).body.decode()


async def _measured(yard: Rig, name: str) -> float:
    return next(
        (float(line.rpartition(" ")[2]) for line in (await _metrics(yard)).splitlines() if line.startswith(name)), 0.0
    )
