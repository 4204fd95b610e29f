"""Who may call, from the moment a token is made to the moment it is none; and what is remembered of calls."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.gateway.e2e.running_gateway import API_KEY, CHAT, RunningGateway, model, running_gateway

from ostler.gateway import control
from ostler.hub.gateway import callers

pytestmark = pytest.mark.asyncio(loop_scope="module")
SECRET_WORDS = "a word that nobody else may read"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningGateway]:
    async with running_gateway(tmp_path_factory.mktemp("callers"), [model("a"), model("b")], scheduler="fifo") as made:
        yield made


async def made(gateway: RunningGateway, **fields: Any) -> dict[str, Any]:
    answer = await gateway.ask_hub("POST", "/v1/tokens", fields)
    assert answer.status == 201
    return dict(answer.json)


async def is_taken(gateway: RunningGateway, token: str) -> bool:
    return (await gateway.ask("GET", "/v1/models", token=token)).status == 200


async def test_the_relay_hears_of_tokens_when_they_are_made_and_revoked(gateway: RunningGateway) -> None:
    gateway.hub.gateway.callers.stop()  # nobody looks for what has changed
    ann = await made(gateway, role="user", user="ann")
    await gateway.until(lambda: is_taken(gateway, ann["token"]), "the new token opens")
    gateway.hub.gateway.callers.stop()
    await gateway.ask_hub("DELETE", f"/v1/tokens/{ann['id']}")

    async def refused() -> bool:
        return not await is_taken(gateway, ann["token"])

    await gateway.until(refused, "the revoked token opens nothing")


async def test_many_changes_at_once_are_told_together(gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[control.ToRelay] = []
    say = gateway.hub.gateway.callers._say
    monkeypatch.setattr(gateway.hub.gateway.callers, "_say", lambda message: (said.append(message), say(message)))
    tokens = [await made(gateway, role="user", user=f"u{number}") for number in range(20)]
    for one in tokens:
        await gateway.until(lambda one=one: is_taken(gateway, one["token"]), "each token opens")
    assert len(said) < 20


async def test_a_token_that_expires_opens_nothing_more(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "LOOK_S", 0.05)
    brief = await made(gateway, role="user", user="ann", expires_s=1.0)
    await gateway.until(lambda: is_taken(gateway, brief["token"]), "the new token opens")

    async def refused() -> bool:
        return not await is_taken(gateway, brief["token"])

    await gateway.until(refused, "the expired token opens nothing")


async def test_a_token_for_the_gateway_calls_models_and_nothing_else(gateway: RunningGateway) -> None:
    caller = (await made(gateway, role="gateway", user="notebook"))["token"]
    await gateway.until(lambda: is_taken(gateway, caller), "the new token opens")
    asked = {"model": "a", "messages": []}
    assert (await gateway.ask("POST", CHAT, asked, token=caller)).status == 200
    for method, path in (("GET", "/unload"), ("POST", "/api/models/a/unload"), ("POST", "/api/models/a/load")):
        assert (await gateway.ask(method, path, token=caller)).status == 403, path
    assert (await gateway.ask("GET", "/logs/stream/a", token=caller)).status == 403
    assert (await gateway.ask("GET", "/running", token=caller)).json["running"][0]["model"] == "a"


async def test_a_workers_token_calls_nothing(gateway: RunningGateway) -> None:
    worker = await made(gateway, role="worker", user="box")

    async def is_known() -> bool:
        return (await gateway.ask("GET", "/v1/models", token=worker["token"])).status == 403

    await gateway.until(is_known, "the token is known as a worker's")
    assert (await gateway.ask("POST", CHAT, {"model": "a", "messages": []}, token=worker["token"])).status == 403


async def test_the_last_requests_are_remembered_without_what_was_said(gateway: RunningGateway) -> None:
    ann = await made(gateway, role="user", user="ann")
    await gateway.until(lambda: is_taken(gateway, ann["token"]), "the new token opens")
    body = {"model": "a", "messages": [{"role": "user", "content": SECRET_WORDS}]}
    assert (await gateway.ask("POST", CHAT, body, token=ann["token"])).status == 200
    serving = gateway.hold("a", "1")
    held = await gateway.servers.asked("1")
    waiting = gateway.call("b", "2")
    await gateway.queued("b")
    held.end()
    await gateway.answered(serving, waiting)
    answer = await gateway.remembered("b", "a", "a")
    b, first, anns = answer.json["activity"][:3]
    assert (b["model"], b["status"], b["user"]) == ("b", 200, "admin")
    assert 0 < b["queue_s"] <= b["first_byte_s"] <= b["total_s"]
    assert (first["model"], anns["model"], anns["user"]) == ("a", "a", "ann")
    assert (anns["prompt_tokens"], anns["completion_tokens"]) == (3, 2)
    assert SECRET_WORDS.encode() not in answer.body
    assert (await gateway.ask_hub("GET", "/v1/models/activity")).json["activity"] == answer.json["activity"]
    for token in (ann["token"], API_KEY):
        seen = (await gateway.ask("GET", "/api/activity", token=token)).json["activity"]
        assert {one["user"] for one in seen} <= {"ann" if token != API_KEY else "key-1"}
    (own,) = (await gateway.ask_hub("GET", "/v1/models/activity", token=ann["token"])).json["activity"]
    assert own == anns


async def test_the_last_requests_name_the_ids_of_their_answers(gateway: RunningGateway) -> None:
    (served,) = await gateway.answered(gateway.call("a", "1"))
    serving = gateway.hold("a", "2")
    held = await gateway.servers.asked("2")
    waiting = gateway.call("b", "3")
    await gateway.queued("b")
    await gateway.ask("POST", "/api/models/b/unload")
    held.end()
    refused, second = await gateway.answered(waiting, serving)
    assert (refused.status, second.status) == (503, 200)
    found = (await gateway.remembered("a", "b", "a")).json["activity"][:3]
    assert [one["request_id"] for one in found] == [
        answer.headers["X-Request-Id"] for answer in (second, refused, served)
    ]


async def test_the_time_of_a_model_counts_for_those_who_call_it(gateway: RunningGateway) -> None:
    """The load for the one who waited for it, and the requests in flight for both. The gateway itself uses nothing."""
    tokens = {user: (await made(gateway, role="user", user=user))["token"] for user in ("eve", "dan")}
    for user, token in tokens.items():
        await gateway.until(lambda token=token: is_taken(gateway, token), f"{user} is let in")

    async def used() -> dict[str, float]:
        users = (await gateway.ask_hub("GET", "/v1/queue")).json["users"]
        return {one["user"]: one["gpu_seconds"] for one in users}

    before = await used()
    fleet, clock = gateway.hub.loop.fleet, gateway.hub.loop.now
    await gateway.ask("POST", CHAT, {"model": "a", "messages": []}, token=tokens["eve"])
    await gateway.until(lambda: fleet.usage.gpu_seconds("eve", clock()) > 0, "the load counts for eve")
    assert fleet.usage.gpu_seconds("dan", clock()) == 0.0
    held = asyncio.create_task(
        gateway.ask("POST", CHAT, {"model": "a", "hold": "dan", "messages": []}, token=tokens["dan"])
    )
    (await gateway.servers.asked("dan")).end()
    assert (await held).status == 200
    await gateway.ask("POST", "/api/models/a/unload")
    await gateway.until(lambda: fleet.usage.gpu_seconds("dan", clock()) > 0, "the request counts for dan")
    after = await used()
    assert after.get("gateway") == before.get("gateway")
