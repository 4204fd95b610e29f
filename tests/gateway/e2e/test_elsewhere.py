"""Models on other machines, and on other gateways."""

import asyncio
import http.client
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import pytest
import pytest_asyncio
from tests.gateway.e2e.model_servers import WAIT_S
from tests.gateway.e2e.running_gateway import CHAT, RunningGateway, first_data, model, running_gateway

from ostler.gateway import control
from ostler.hub import relays
from ostler.hub.gateway import processes
from ostler.wire.messages import RelayRequest

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningGateway]:
    """A gateway whose worker passes for another machine's that came through a proxy on this one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "socket", SimpleNamespace(gethostname=lambda: "the-hub"))
        async with running_gateway(tmp_path_factory.mktemp("far"), [model("a"), model("b")], scheduler="fifo") as made:
            yield made


def tunnels(gateway: RunningGateway) -> int:
    return sum(isinstance(message, control.NeedTunnel) for message in gateway.heard)


async def test_a_model_on_another_machine_is_called_and_streams_through_its_worker(gateway: RunningGateway) -> None:
    answers = await gateway.answered(*(gateway.call("a", str(number)) for number in range(5)))
    assert {answer.text for answer in answers} == {"hello from a"}
    asked_for = tunnels(gateway)
    assert 1 <= asked_for <= 5
    for number in range(3):
        await gateway.answered(gateway.call("a", f"again {number}"))
    assert tunnels(gateway) == asked_for
    async with gateway.stream("a", "s") as answer:
        held = await gateway.servers.asked("s")
        held.say("piece by piece")
        assert b"piece by piece" in await first_data(answer)
        held.end()
        assert b"[DONE]" in await answer.content.read()
    answer = await gateway.stream("a", "left")
    held = await gateway.servers.asked("left")
    answer.close()
    await gateway.servers.left(held)
    assert (await gateway.answered(gateway.call("b", "1")))[0].status == 200


async def test_a_large_prompt_reaches_another_machine_over_a_new_tunnel(gateway: RunningGateway) -> None:
    messages = [{"role": "user", "content": "x" * 3_000_000}]
    (answer,) = await gateway.answered(gateway.call("b", "large", messages=messages))
    assert answer.status == 200, answer.body

    def has_come() -> bool:
        return any(news.get("body", {}).get("messages") == messages for news in gateway.servers.news)

    await gateway.servers.until(has_come, "the whole prompt")


async def test_a_stream_from_another_machine_needs_nothing_of_the_hub(gateway: RunningGateway) -> None:
    """The hub runs in this test's own loop, which does nothing else while a call blocks it."""

    async def passes_an_open_gate() -> bool:
        await gateway.answered(gateway.call("a", "1"))
        return any(isinstance(message, control.Done) and not message.asked for message in gateway.heard)

    await gateway.until(passes_an_open_gate, "a is served without asking")
    asked_for = tunnels(gateway)
    caller = http.client.HTTPConnection(gateway.calls.removeprefix("http://"), timeout=WAIT_S)
    body = json.dumps({"model": "a", "stream": True, "messages": []})
    for _ in range(2):
        caller.request("POST", CHAT, body, {"Authorization": f"Bearer {gateway.token}"})
        said = caller.getresponse().read()
        assert b"from a" in said and b"[DONE]" in said
    caller.close()
    assert tunnels(gateway) == asked_for


async def test_a_worker_that_cannot_reach_the_gateway_says_so_to_the_caller(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = gateway.hub.gateway.tunnels.needed
    monkeypatch.setattr(gateway.hub.gateway.tunnels, "needed", lambda message, port, url: needed(message, 1))
    (answer,) = await gateway.answered(gateway.call("a", "1"))
    assert answer.status == 502
    assert "the gateway at 127.0.0.1:1 cannot be reached from here" in answer.message


async def test_a_worker_that_knows_no_tunnels_is_too_old_to_be_called(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It opens the other kind of relay, and waits there."""
    monkeypatch.setattr(relays, "TELLS_S", 0.05)
    asked: asyncio.Queue[RelayRequest] = asyncio.Queue()
    monkeypatch.setattr(gateway.hub.sessions, "ask_for_relay", lambda _, request: asked.put_nowait(request) or "")
    made = await gateway.ask_hub("POST", "/v1/tokens", {"role": "worker", "user": "worker"})
    shown = {"Authorization": f"Bearer {made.json['token']}"}
    call = gateway.call("a", "1")
    while not call.done():
        request = asyncio.create_task(asked.get())
        await asyncio.wait([request, call], return_when=asyncio.FIRST_COMPLETED)
        if request.done():
            where = f"{gateway.url}/v1/ws/relay/{request.result().relay_id}"
            async with gateway.web.ws_connect(where, headers=shown) as socket:
                assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE
        request.cancel()
    (answer,) = await gateway.answered(call)
    assert answer.status == 502 and "is older than the hub" in answer.message


async def test_a_worker_that_is_not_connected_is_named(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway.hub.sessions, "ask_for_relay", lambda session, request: "is not connected")
    (answer,) = await gateway.answered(gateway.call("a", "1"))
    assert answer.status == 502 and "box, where it runs, is not connected" in answer.message


async def test_the_models_of_a_peer_are_called_there(tmp_path: Path) -> None:
    async with running_gateway(tmp_path / "theirs", [model("far", check="none")], scheduler="fifo") as theirs:
        peers = {
            "plain": {"url": f"{theirs.calls}/v1", "models": ["far"], "api_key": theirs.token},
            "below": {"url": f"{theirs.calls}/upstream/far", "models": ["deep"], "api_key": theirs.token},
            "nobody": {"url": "https://127.0.0.1:1", "models": ["closed"]},
        }
        async with running_gateway(tmp_path / "ours", [model("a")], workers=False, peers=peers) as ours:
            for name in ("plain/far", "below/deep"):
                answer = await ours.ask("POST", CHAT, {"model": name, "messages": []})
                assert (answer.status, answer.text) == (200, "hello from far")
            refused = await ours.ask("POST", CHAT, {"model": "nobody/closed", "messages": []})
            assert (refused.status, refused.code) == (502, "peer_unreachable")
            assert "cannot be reached" in refused.message
            activity = (await ours.remembered("nobody/closed", "below/deep", "plain/far")).json["activity"]
            assert [(one["model"], one["status"]) for one in activity] == [
                ("nobody/closed", 502),
                ("below/deep", 200),
                ("plain/far", 200),
            ]
