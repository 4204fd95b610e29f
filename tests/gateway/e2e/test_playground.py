"""A chat that goes through the hub: streamed, in the name of whoever is logged in, and by no key that anybody has."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio
from tests.gateway.e2e.running_gateway import RunningGateway, first_data, model, running_gateway

from ostler.hub.gateway import playground

pytestmark = pytest.mark.asyncio(loop_scope="module")
CHAT = "/v1/models/chat"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningGateway]:
    async with running_gateway(tmp_path_factory.mktemp("playground"), [model("a")], scheduler="fifo") as made:
        yield made


def said(model: str, **more: object) -> dict[str, object]:
    return {"model": model, "messages": [{"role": "user", "content": "hello"}], **more}


async def test_a_chat_is_passed_on_and_told_as_the_callers(gateway: RunningGateway) -> None:
    answer = await gateway.ask_hub("POST", CHAT, said("a"))
    assert answer.status == 200 and answer.json["choices"][0]["message"]["content"]
    newest = (await gateway.remembered("a")).json["activity"][0]
    assert (newest["model"], newest["user"], newest["status"]) == ("a", "admin", 200)


async def test_what_the_gateway_refuses_is_refused_in_its_own_words(gateway: RunningGateway) -> None:
    answer = await gateway.ask_hub("POST", CHAT, said("nobody"))
    assert answer.status == 404 and "nobody" in answer.message


async def test_who_only_looks_may_not_talk(gateway: RunningGateway) -> None:
    viewer = (await gateway.ask_hub("POST", "/v1/tokens", {"role": "viewer", "user": "eve"})).json["token"]
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {viewer}"}) as session:
        answer = await session.post(gateway.url + CHAT, json=said("a"))
        assert answer.status == 403


def talking(gateway: RunningGateway, tag: str, token: str, **more: object) -> "asyncio.Task[aiohttp.ClientResponse]":
    """One that the model answers when `gateway.servers` says so."""
    asking = gateway.web.post(
        gateway.url + CHAT, json=said("a", hold=tag, **more), headers={"Authorization": f"Bearer {token}"}
    )
    return asyncio.ensure_future(asking)


async def nobody_talks(gateway: RunningGateway) -> None:
    await gateway.until(lambda: not gateway.hub.playground._open, "nobody talks over the hub")


async def test_who_leaves_before_the_first_word_ends_it_at_the_model(gateway: RunningGateway) -> None:
    leaving = talking(gateway, "1", gateway.token)
    held = await gateway.servers.asked("1")
    leaving.cancel()
    await gateway.servers.left(held)
    await nobody_talks(gateway)


async def test_who_leaves_amid_the_answer_ends_it_at_the_model(gateway: RunningGateway) -> None:
    asking = talking(gateway, "1", gateway.token, stream=True)
    held = await gateway.servers.asked("1")
    held.say("begun")
    answer = await asking
    assert b"begun" in await first_data(answer)
    answer.close()
    await gateway.servers.left(held)
    await nobody_talks(gateway)


async def test_a_hub_that_stops_waits_for_no_answer_begun_or_not(gateway: RunningGateway) -> None:
    begun, waiting = talking(gateway, "1", gateway.token, stream=True), talking(gateway, "2", gateway.token)
    held, unanswered = await gateway.servers.asked("1"), await gateway.servers.asked("2")
    held.say("begun")
    answer = await begun
    assert b"begun" in await first_data(answer)
    gateway.hub.playground.let_go()
    with pytest.raises(aiohttp.ClientError):
        await answer.read()
    assert (await waiting).status == 503
    await gateway.servers.left(held)
    await gateway.servers.left(unanswered)
    await nobody_talks(gateway)
    gateway.hub.playground._stops.clear()  # the tests go on with it


async def test_one_user_leaves_room_for_others_however_many_come_at_once(gateway: RunningGateway) -> None:
    ann = (await gateway.ask_hub("POST", "/v1/tokens", {"role": "user", "user": "ann"})).json["token"]
    calls = [talking(gateway, "1", ann) for _ in range(playground.AT_ONCE + 1)]
    await gateway.servers.asked("1", playground.AT_ONCE_EACH)
    await gateway.until(
        lambda: sum(call.done() for call in calls) > playground.AT_ONCE - playground.AT_ONCE_EACH, "all came"
    )
    assert {call.result().status for call in calls if call.done()} == {429}
    assert (await gateway.ask_hub("POST", CHAT, said("a"))).status == 200
    for call in calls:
        call.cancel()
    await nobody_talks(gateway)


async def test_so_many_talk_at_once_and_no_more(gateway: RunningGateway) -> None:
    talks = gateway.hub.playground
    talks._open.update({f"user {number}": 1 for number in range(playground.AT_ONCE)})
    try:
        assert (await gateway.ask_hub("POST", CHAT, said("a"))).status == 429
    finally:
        talks._open.clear()
    assert (await gateway.ask_hub("POST", CHAT, said("a"))).status == 200
    await nobody_talks(gateway)
