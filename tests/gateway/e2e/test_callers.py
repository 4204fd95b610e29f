"""Who may call, from the moment a token is made to the moment it is none; and what is remembered of calls."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.gateway.e2e.rig import API_KEY, CHAT, Rig, model, rig

from ostler.gateway import control
from ostler.hub.gateway import callers

pytestmark = pytest.mark.asyncio(loop_scope="module")
SECRET_WORDS = "a word that nobody else may read"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    async with rig(tmp_path_factory.mktemp("callers"), [model("a"), model("b")], scheduler="fifo") as made:
        yield made


async def made(yard: Rig, **fields: Any) -> dict[str, Any]:
    answer = await yard.ask_hub("POST", "/v1/tokens", fields)
    assert answer.status == 201
    return dict(answer.json)


async def is_taken(yard: Rig, token: str) -> bool:
    return (await yard.ask("GET", "/v1/models", token=token)).status == 200


async def test_the_relay_hears_of_tokens_when_they_are_made_and_revoked(yard: Rig) -> None:
    yard.gateway.callers.stop()  # nobody looks for what has changed
    ann = await made(yard, role="user", user="ann")
    await yard.until(lambda: is_taken(yard, ann["token"]), "the new token opens")
    yard.gateway.callers.stop()
    await yard.ask_hub("DELETE", f"/v1/tokens/{ann['id']}")

    async def refused() -> bool:
        return not await is_taken(yard, ann["token"])

    await yard.until(refused, "the revoked token opens nothing")


async def test_many_changes_at_once_are_told_together(yard: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[control.ToRelay] = []
    say = yard.gateway.callers._say
    monkeypatch.setattr(yard.gateway.callers, "_say", lambda message: (said.append(message), say(message)))
    tokens = [await made(yard, role="user", user=f"u{number}") for number in range(20)]
    for one in tokens:
        await yard.until(lambda one=one: is_taken(yard, one["token"]), "each token opens")
    assert len(said) < 20


async def test_a_token_that_expires_opens_nothing_more(yard: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "LOOK_S", 0.05)
    brief = await made(yard, role="user", user="ann", expires_s=1.0)
    await yard.until(lambda: is_taken(yard, brief["token"]), "the new token opens")

    async def refused() -> bool:
        return not await is_taken(yard, brief["token"])

    await yard.until(refused, "the expired token opens nothing")


async def test_a_token_for_the_gateway_calls_models_and_nothing_else(yard: Rig) -> None:
    caller = (await made(yard, role="gateway", user="notebook"))["token"]
    await yard.until(lambda: is_taken(yard, caller), "the new token opens")
    asked = {"model": "a", "messages": []}
    assert (await yard.ask("POST", CHAT, asked, token=caller)).status == 200
    for method, path in (("GET", "/unload"), ("POST", "/api/models/a/unload"), ("POST", "/api/models/a/load")):
        assert (await yard.ask(method, path, token=caller)).status == 403, path
    assert (await yard.ask("GET", "/logs/stream/a", token=caller)).status == 403
    assert (await yard.ask("GET", "/running", token=caller)).json["running"][0]["model"] == "a"


async def test_a_workers_token_calls_nothing(yard: Rig) -> None:
    worker = await made(yard, role="worker", user="box")

    async def is_known() -> bool:
        return (await yard.ask("GET", "/v1/models", token=worker["token"])).status == 403

    await yard.until(is_known, "the token is known as a worker's")
    assert (await yard.ask("POST", CHAT, {"model": "a", "messages": []}, token=worker["token"])).status == 403


async def test_the_last_requests_are_remembered_without_what_was_said(yard: Rig) -> None:
    ann = await made(yard, role="user", user="ann")
    await yard.until(lambda: is_taken(yard, ann["token"]), "the new token opens")
    body = {"model": "a", "messages": [{"role": "user", "content": SECRET_WORDS}]}
    assert (await yard.ask("POST", CHAT, body, token=ann["token"])).status == 200
    serving = yard.hold("a", "1")
    held = await yard.stage.asked("1")
    waiting = yard.call("b", "2")
    await yard.queued("b")
    held.end()
    await yard.answered(serving, waiting)
    answer = await yard.remembered("b", "a", "a")
    b, first, anns = answer.json["activity"][:3]
    assert (b["model"], b["status"], b["user"]) == ("b", 200, "admin")
    assert 0 < b["queue_s"] <= b["first_byte_s"] <= b["total_s"]
    assert (first["model"], anns["model"], anns["user"]) == ("a", "a", "ann")
    assert (anns["prompt_tokens"], anns["completion_tokens"]) == (3, 2)
    assert SECRET_WORDS.encode() not in answer.body
    assert (await yard.ask_hub("GET", "/v1/models/activity")).json["activity"] == answer.json["activity"]
    for token in (ann["token"], API_KEY):
        seen = (await yard.ask("GET", "/api/activity", token=token)).json["activity"]
        assert {one["user"] for one in seen} <= {"ann" if token != API_KEY else "key-1"}
    (own,) = (await yard.ask_hub("GET", "/v1/models/activity", token=ann["token"])).json["activity"]
    assert own == anns
