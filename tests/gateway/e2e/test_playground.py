"""A chat that goes through the hub: streamed, in the name of whoever is logged in, and by no key that anybody has."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio
from tests.gateway.e2e.rig import Rig, model, rig

from ostler.hub.gateway import playground

pytestmark = pytest.mark.asyncio(loop_scope="module")
CHAT = "/v1/models/chat"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    async with rig(tmp_path_factory.mktemp("playground"), [model("a")], scheduler="fifo") as made:
        yield made


def said(model: str, **more: object) -> dict[str, object]:
    return {"model": model, "messages": [{"role": "user", "content": "hello"}], **more}


async def test_a_chat_is_passed_on_and_told_as_the_callers(yard: Rig) -> None:
    answer = await yard.ask_hub("POST", CHAT, said("a"))
    assert answer.status == 200 and answer.json["choices"][0]["message"]["content"]
    newest = (await yard.remembered("a")).json["activity"][0]
    assert (newest["model"], newest["user"], newest["status"]) == ("a", "admin", 200)


async def test_what_the_gateway_refuses_is_refused_in_its_own_words(yard: Rig) -> None:
    answer = await yard.ask_hub("POST", CHAT, said("nobody"))
    assert answer.status == 404 and "nobody" in answer.message


async def test_who_only_looks_may_not_talk(yard: Rig) -> None:
    viewer = (await yard.ask_hub("POST", "/v1/tokens", {"role": "viewer", "user": "eve"})).json["token"]
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {viewer}"}) as session:
        answer = await session.post(yard.url + CHAT, json=said("a"))
        assert answer.status == 403


def talking(yard: Rig, tag: str, token: str, **more: object) -> "asyncio.Task[aiohttp.ClientResponse]":
    """One that the model answers when the stage says so."""
    asking = yard.web.post(
        yard.url + CHAT, json=said("a", hold=tag, **more), headers={"Authorization": f"Bearer {token}"}
    )
    return asyncio.ensure_future(asking)


async def nobody_talks(yard: Rig) -> None:
    await yard.until(lambda: not yard.hub.playground._open, "nobody talks over the hub")


async def test_who_leaves_before_the_first_word_ends_it_at_the_model(yard: Rig) -> None:
    leaving = talking(yard, "1", yard.token)
    held = await yard.stage.asked("1")
    leaving.cancel()
    await yard.stage.left(held)
    await nobody_talks(yard)


async def test_who_leaves_amid_the_answer_ends_it_at_the_model(yard: Rig) -> None:
    asking = talking(yard, "1", yard.token, stream=True)
    held = await yard.stage.asked("1")
    held.say("begun")
    answer = await asking
    assert b"begun" in await answer.content.readline()
    answer.close()
    await yard.stage.left(held)
    await nobody_talks(yard)


async def test_a_hub_that_stops_waits_for_no_answer_begun_or_not(yard: Rig) -> None:
    begun, waiting = talking(yard, "1", yard.token, stream=True), talking(yard, "2", yard.token)
    held, unanswered = await yard.stage.asked("1"), await yard.stage.asked("2")
    held.say("begun")
    answer = await begun
    assert b"begun" in await answer.content.readline()
    yard.hub.playground.let_go()
    with pytest.raises(aiohttp.ClientError):
        await answer.read()
    assert (await waiting).status == 503
    await yard.stage.left(held)
    await yard.stage.left(unanswered)
    await nobody_talks(yard)
    yard.hub.playground._stops.clear()  # the tests go on with it


async def test_one_user_leaves_room_for_others_however_many_come_at_once(yard: Rig) -> None:
    ann = (await yard.ask_hub("POST", "/v1/tokens", {"role": "user", "user": "ann"})).json["token"]
    calls = [talking(yard, "1", ann) for _ in range(playground.AT_ONCE + 1)]
    await yard.stage.asked("1", playground.AT_ONCE_EACH)
    await yard.until(
        lambda: sum(call.done() for call in calls) > playground.AT_ONCE - playground.AT_ONCE_EACH, "all came"
    )
    assert {call.result().status for call in calls if call.done()} == {429}
    assert (await yard.ask_hub("POST", CHAT, said("a"))).status == 200
    for call in calls:
        call.cancel()
    await nobody_talks(yard)


async def test_so_many_talk_at_once_and_no_more(yard: Rig) -> None:
    talks = yard.hub.playground
    talks._open.update({f"user {number}": 1 for number in range(playground.AT_ONCE)})
    try:
        assert (await yard.ask_hub("POST", CHAT, said("a"))).status == 429
    finally:
        talks._open.clear()
    assert (await yard.ask_hub("POST", CHAT, said("a"))).status == 200
    await nobody_talks(yard)
