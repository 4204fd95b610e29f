"""For whom an instance worked: the hub charges the callers."""

import asyncio

import pytest
from tests.gateway.relay.running_relay import PLAIN, Heard, Line, RunningRelay, chat, key

from ostler.gateway.control import Arrived, Close, Done, Drained, Gone, Grant, Setup, Worked
from ostler.gateway.relay import relay as relays

TWO_USERS = Setup(PLAIN.models, [key(), key("of-bob", "bob")], PLAIN.max_body_bytes, "1")


async def test_requests_by_grant_and_through_the_gate_count_for_their_callers(relay: RunningRelay) -> None:
    together = asyncio.Barrier(2)

    async def script(line: Line, heard: Heard) -> None:
        await together.wait()
        line.answer(b"{}")

    relay.hub.say(TWO_USERS)
    server = await relay.server(script)
    by_grant = asyncio.create_task(relay.call(chat()))
    asked = await relay.hub.hears(Arrived)
    relay.hub.say(Grant(asked.request, "i1", "127.0.0.1", server.port))
    await relay.settled()
    await relay.open_gate(server)
    through_gate = asyncio.create_task((await relay.client()).call(chat(), secret="of-bob"))
    await asyncio.gather(by_grant, through_gate)
    await relay.hub.hears(Done, user="bob")
    assert not relay.hub.heard(Worked), "not for each request"
    relay.hub.say(Close("i1"))
    await relay.hub.hears(Drained, instance="i1")
    [worked] = relay.hub.heard(Worked)
    assert worked.instance == "i1" and not worked.last
    assert 0 < worked.seconds["bob"] <= worked.seconds["ann"], "ann was alone at first"


async def test_a_long_request_is_reported_while_it_runs_and_for_the_last_time_when_its_instance_is_gone(
    relay: RunningRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "WORKED_EVERY_S", 0.01)
    ends = asyncio.Event()

    async def script(line: Line, heard: Heard) -> None:
        await ends.wait()
        line.answer(b"{}")

    await relay.serving(script)
    call = asyncio.create_task(relay.call(chat()))
    assert (await relay.hub.hears(Worked)).seconds["ann"] > 0
    ends.set()
    assert (await call).status == 200
    relay.hub.say(Gone("i1"))
    await relay.hub.hears(Worked, last=True)
