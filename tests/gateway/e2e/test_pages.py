"""What the gateway shows of itself, and who may do what there."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio
from tests.gateway.e2e.model_servers import WAIT_S
from tests.gateway.e2e.running_gateway import API_KEY, CHAT, RunningGateway, model, running_gateway

from ostler.hub.gateway.pages import SHOWN_BYTES

pytestmark = pytest.mark.asyncio(loop_scope="module")
LOG = ("GET", "/logs/stream/a")
TALKER = ["sh", "-c", "echo the weights are read; exec sleep 600"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningGateway]:
    models = {
        "a": model("a", aliases=["org/a"], description="the first"),
        "b": model("b"),
        "hidden": model("hidden", unlisted=True),
        "brief": model("brief", vram="1g", ttl=0.3),
        "small": model("small", vram="1g"),
        "talker": {"cmd": TALKER, "vram": "1g"},
    }
    async with running_gateway(tmp_path_factory.mktemp("pages"), models, scheduler="fifo") as made:
        yield made


async def test_models_are_listed_with_whether_they_are_loaded(gateway: RunningGateway) -> None:
    await gateway.answered(gateway.call("a", "1"))
    listed = (await gateway.ask("GET", "/v1/models")).json
    assert listed["object"] == "list"
    states = {one["id"]: one["status"]["value"] for one in listed["data"]}
    assert states["a"] == "loaded"
    assert states["b"] == "unloaded"
    assert "hidden" not in states


async def test_what_runs_is_shown(gateway: RunningGateway) -> None:
    serving = gateway.hold("a", "1")
    held = await gateway.servers.asked("1")
    (one,) = (await gateway.ask("GET", "/running")).json["running"]
    assert (one["model"], one["state"], one["worker"], one["in_flight"]) == ("a", "ready", "box", 1)
    held.end()
    await gateway.answered(serving)


async def test_models_are_loaded_and_unloaded_by_hand(gateway: RunningGateway) -> None:
    assert (await gateway.ask("POST", "/api/models/org%2Fa/load")).json == {"loading": ["a"]}
    await gateway.is_state("a", "ready")
    assert (await gateway.ask("POST", "/api/models/org/a/unload")).json == {"unloaded": ["a"]}
    assert await gateway.state_of("a") == "stopped"
    await gateway.answered(gateway.call("a", "1"), gateway.call("small", "2"))
    assert set((await gateway.ask("POST", "/api/models/unload")).json["unloaded"]) == {"a", "small"}
    await gateway.answered(gateway.call("small", "3"))
    assert (await gateway.ask("GET", "/unload")).json == {"unloaded": ["small"]}
    assert (await gateway.ask("POST", "/api/models/nobody/unload")).status == 404


async def test_a_model_is_unloaded_by_llama_swaps_spelling_of_the_path_too(gateway: RunningGateway) -> None:
    await gateway.answered(gateway.call("a", "1"))
    assert (await gateway.ask("POST", "/api/models/unload/org/a")).json == {"unloaded": ["a"]}
    assert await gateway.state_of("a") == "stopped"
    assert (await gateway.ask("POST", "/api/models/unload/nobody")).status == 404
    assert (await gateway.ask("POST", "/api/models/unload/a", token=API_KEY)).status == 403


async def test_a_load_by_hand_has_an_idle_model_make_room(gateway: RunningGateway) -> None:
    await gateway.answered(gateway.call("a", "1"))
    assert (await gateway.ask("POST", "/api/models/b/load")).json == {"loading": ["b"]}
    await gateway.is_state("b", "ready")
    assert await gateway.state_of("a") == "stopped"
    assert (await gateway.queue(), gateway.servers.diary()) == ([], ["load a", "a 1", "load b"])


async def test_a_load_by_hand_waits_for_what_is_served_and_says_so(gateway: RunningGateway) -> None:
    serving = gateway.hold("a", "1")
    held = await gateway.servers.asked("1")
    waits = (await gateway.ask_hub("POST", "/v1/models/b/load")).json
    assert (waits["state"], waits["queued"]) == ("stopped", 1)
    assert "'a' is in its room and is serving" in waits["waits_for"]
    held.end()
    await gateway.answered(serving)
    await gateway.is_state("b", "ready")


async def test_a_load_that_is_asked_for_twice_is_one_and_says_nothing_of_how_long_serving_takes(
    gateway: RunningGateway,
) -> None:
    serving = gateway.hold("a", "1")
    held = await gateway.servers.asked("1")
    before = gateway.hub.gateway.scheduler.state.learnt["b"].serve_s
    for _ in range(2):
        waits = (await gateway.ask_hub("POST", "/v1/models/b/load")).json
    assert waits["queued"] == 1
    held.end()
    await gateway.answered(serving)
    await gateway.is_state("b", "ready")
    await gateway.until(lambda: not gateway.hub.gateway.scheduler.state.flights, "it is over")
    assert gateway.hub.gateway.scheduler.state.learnt["b"].serve_s == before


async def test_the_jobs_in_the_way_of_many_who_wait_for_one_model_are_looked_for_once(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    look = gateway.hub.gateway.jobs_in_the_way

    def looks(model: str) -> list[str]:
        looked.append(model)
        return look(model)

    monkeypatch.setattr(gateway.hub.gateway, "jobs_in_the_way", looks)
    serving = gateway.hold("a", "1")
    held = await gateway.servers.asked("1")
    calls = [gateway.call("b", str(number)) for number in range(3)]
    await gateway.queued("b", "b", "b")
    looked.clear()
    assert len(await gateway.queue()) == 3 and looked == ["b"]
    held.end()
    await gateway.answered(serving, *calls)


async def test_any_path_of_a_models_server_is_reached_through_upstream(gateway: RunningGateway) -> None:
    answer = await gateway.ask("GET", "/upstream/a/props?x=1")
    assert answer.status == 200
    assert gateway.servers.news[-1]["path"] == "/props?x=1"


async def test_the_log_of_a_model_is_streamed_while_it_runs(gateway: RunningGateway) -> None:
    await gateway.ask("POST", "/api/models/talker/load")
    await gateway.is_state("talker", "loading")
    await gateway.until(lambda: gateway.instance("talker").attempt, "talker has a process")
    async with gateway._request("GET", f"{gateway.calls}/logs/stream/talker", None, None, None) as answer:
        assert answer.headers["X-Accel-Buffering"] == "no"
        assert answer.status == 200
        async with asyncio.timeout(WAIT_S):
            assert await answer.content.readline() == b"the weights are read\n"
        await gateway.ask("POST", "/api/models/talker/unload")
        async with asyncio.timeout(WAIT_S):
            assert await answer.content.read() == b""
    assert (await gateway.ask("GET", "/logs/stream/talker")).status == 404


async def test_the_stream_of_a_long_log_begins_with_its_end_and_is_not_cut(gateway: RunningGateway) -> None:
    await gateway.ask("POST", "/api/models/talker/load")
    await gateway.until(
        lambda: (one := gateway.hub.gateway.instances.foremost("talker")) and one.attempt, "it has a process"
    )
    attempt, logs = gateway.instance("talker").attempt, gateway.hub.logs
    await logs.append(attempt, logs.store.size(attempt), b"x" * 2**25 + b"\nthe end\n")
    async with (
        asyncio.timeout(WAIT_S),
        gateway._request("GET", f"{gateway.calls}/logs/stream/talker", None, None, None) as log,
    ):
        shown = b""
        while not shown.endswith(b"\nthe end\n"):
            shown += await log.content.readany()
            assert shown and len(shown) <= SHOWN_BYTES
    assert len(shown) == SHOWN_BYTES


async def _swaps(gateway: RunningGateway, name: str) -> tuple[int, int]:
    """How often the model has come and gone, as its page shows it."""
    listed = (await gateway.ask_hub("GET", "/v1/models")).json["models"]
    told = next(one for one in listed if one["name"] == name)
    return told["loads"], told["stops"]


async def test_each_model_is_measured(gateway: RunningGateway) -> None:
    serving = gateway.hold("a", "1")
    held = await gateway.servers.asked("1")
    waiting = gateway.call("b", "2")
    await gateway.queued("b")
    assert 'ostler_model_in_flight{model="a"} 1.0' in await _metrics(gateway)
    assert 'ostler_model_queued{model="b"} 1.0' in await _metrics(gateway)
    before = await _measured(gateway, 'ostler_model_evictions_total{model="a",reason="evicted"}')
    loads, stops = await _swaps(gateway, "a")
    assert loads > 0
    held.end()
    await gateway.answered(serving, waiting)
    assert await _measured(gateway, 'ostler_model_evictions_total{model="a",reason="evicted"}') == before + 1
    assert await _measured(gateway, 'ostler_model_requests_total{model="b",status="200"}') >= 1
    assert await _measured(gateway, 'ostler_model_tokens_total{kind="completion",model="b"}') >= 2
    assert await _measured(gateway, 'ostler_model_load_seconds_sum{model="b"}') > 0
    assert await _measured(gateway, 'ostler_model_queue_seconds_sum{model="b"}') > 0
    assert await _swaps(gateway, "a") == (loads, stops + 1)
    assert await _measured(gateway, 'ostler_model_first_byte_seconds_count{model="b"}') >= 1


async def test_a_model_that_was_idle_for_its_ttl_is_unloaded(gateway: RunningGateway) -> None:
    await gateway.answered(gateway.call("brief", "1"))
    await gateway.is_state("brief", "stopped")


async def test_a_model_that_is_pinned_stays_until_it_is_unpinned(gateway: RunningGateway) -> None:
    await gateway.answered(gateway.call("a", "1"))
    assert (await gateway.ask_hub("POST", "/v1/models/a/pin")).json["pinned"] is True
    waiting = gateway.call("b", "2")
    await gateway.queued("b")
    assert "pinned" in (await gateway.queue())[0]["why"]
    assert (await gateway.ask_hub("POST", "/v1/models/a/unpin")).json["pinned"] is False
    (answer,) = await gateway.answered(waiting)
    assert answer.status == 200
    assert gateway.servers.loads("a") == 1


async def test_a_key_of_the_configuration_calls_models_and_operates_nothing(gateway: RunningGateway) -> None:
    body = {"model": "a", "messages": []}
    assert (await gateway.ask("POST", CHAT, body, token=API_KEY)).status == 200
    assert (await gateway.ask("GET", "/running", token=API_KEY)).status == 200
    for method, path in (("POST", "/api/models/a/unload"), ("POST", "/api/models/a/load"), ("GET", "/unload"), LOG):
        assert (await gateway.ask(method, path, token=API_KEY)).status == 403
    assert await gateway.state_of("a") == "ready"


async def test_a_new_token_calls_models_and_a_revoked_one_does_no_more(gateway: RunningGateway) -> None:
    made = (await gateway.ask_hub("POST", "/v1/tokens", {"role": "user", "user": "ann"})).json
    viewer = (await gateway.ask_hub("POST", "/v1/tokens", {"role": "viewer", "user": "eve"})).json
    await gateway.until(lambda: _status(gateway, made["token"], 200), "the new token opens")
    assert (await gateway.ask("POST", "/api/models/a/unload", token=made["token"])).status == 200
    assert await _status(gateway, viewer["token"], 401)
    await gateway.ask_hub("DELETE", f"/v1/tokens/{made['id']}")
    await gateway.until(lambda: _status(gateway, made["token"], 401), "the revoked token opens nothing")


async def _status(gateway: RunningGateway, token: str, status: int) -> bool:
    try:
        return (await gateway.ask("POST", CHAT, {"model": "small", "messages": []}, token=token)).status == status
    except aiohttp.ClientConnectionError:
        return False  # what a revoked token had open is cut, and a request may be on its way there


async def _metrics(gateway: RunningGateway) -> str:
    return (await gateway.ask_hub("GET", "/metrics")).body.decode()


async def _measured(gateway: RunningGateway, name: str) -> float:
    return next(
        (float(line.rpartition(" ")[2]) for line in (await _metrics(gateway)).splitlines() if line.startswith(name)),
        0.0,
    )
