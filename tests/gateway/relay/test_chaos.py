"""Everything at once, by a seed: callers who leave, servers that fail, a hub that changes its mind. Each request ends once."""

import asyncio
import contextlib
import random
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.gateway.relay.running_relay import Client, Heard, Line, ModelServer, RunningRelay, chat, until

from ostler.gateway.control import (
    Abort,
    Arrived,
    Cancelled,
    Close,
    Done,
    Gone,
    Grant,
    Open,
    Refuse,
    Tell,
)
from ostler.gateway.relay.exchange import Exchange
from ostler.gateway.relay.limits import Limits

CALLERS = 12
CALLS = 8
MODELS = ("small", "large", "renamed", "draining")
LIMITS = Limits(
    loading_after_s=0.002, loading_every_s=0.002, memory_bytes=20_000, linger_s=0.05, look_every_s=0.02, drain_s=0.05
)


class Chaos:
    def __init__(self, relay: RunningRelay, chance: random.Random) -> None:
        self.relay = relay
        self.chance = chance
        self.servers: list[ModelServer] = []
        self.ends: Counter[int] = Counter()
        self.arrivals: Counter[int] = Counter()
        self.refused: set[int] = set()
        self.instances = 0
        self.answers = 0

    # Model servers

    async def script(self, line: Line, heard: Heard) -> None:
        chance = self.chance
        doing = chance.choice(["answer", "answer", "stream", "stream", "die", "break", "junk", "slow", "late"])
        await asyncio.sleep(chance.choice((0, 0, 0.002, 0.01)))
        if doing == "die":
            line.cut()
            raise ConnectionError
        if doing == "junk":
            line.send(
                chance.choice(
                    (
                        b"nonsense\r\n\r\n",
                        b"HTTP/1.1 200 OK\r\n: x\r\n\r\n",
                        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab",
                    )
                )
            )
        elif doing in ("answer", "late"):
            line.answer(b"x" * chance.choice((0, 10, 100_000)), status=chance.choice((200, 200, 404)))
        elif doing == "slow":
            for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello":
                line.send(bytes((byte,)))
                await asyncio.sleep(0)
        else:
            line.begin_stream()
            for _ in range(chance.randint(0, 10)):
                line.event("x" * chance.choice((1, 50_000)))
                await line.writer.drain()
                await asyncio.sleep(0)
            if doing == "break":
                line.send(b"5\r\nab")
                line.cut()
                raise ConnectionError
            line.end_stream()

    # Callers

    async def caller(self) -> None:
        for _ in range(CALLS):
            client = await self.relay.client()
            for _ in range(self.chance.randint(1, 3)):
                body = chat(
                    self.chance.choice(MODELS),
                    stream=self.chance.random() < 0.5,
                    padding="x" * self.chance.choice((0, 30_000)),
                )
                client.ask(body)
            doing = self.chance.choice(["read", "read", "read", "leave", "reset"])
            if doing == "read":
                await self.read(client)
            else:
                await asyncio.sleep(self.chance.choice((0, 0.002, 0.01)))
            if doing == "reset":
                client.writer.transport.abort()
            client.hang_up()

    async def read(self, client: Client) -> None:
        """One answer, whole or broken off; whichever it is, it comes."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, ValueError):
            reply = await client.reply()
            assert reply.status in (200, 404, 502, 503), reply
            self.answers += 1

    # The hub

    async def hub(self) -> None:
        hub, chance = self.relay.hub, self.chance
        while True:
            message = await hub.hears(Arrived | Done | Cancelled)  # type: ignore[arg-type]
            self.hear(message)
            if chance.random() < 0.05:
                self.change_mind()

    def hear(self, message: Any) -> None:
        match message:
            case Arrived():
                self.arrivals[message.request] += 1
                self.decide(message.request)
            case Done() if message.gave_back:
                if self.arrivals[message.request]:
                    self.decide(message.request)
            case Done() if message.asked:
                self.ends[message.request] += 1
            case Cancelled():
                self.ends[message.request] += 1

    def decide(self, request: int) -> None:
        hub, chance = self.relay.hub, self.chance
        if chance.random() < 0.2:
            self.refused.add(request)
            hub.say(Refuse(request, 503, "busy", "later", 1))
            return
        if chance.random() < 0.3:
            hub.say(Tell(request, "soon"))
        if chance.random() < 0.1:
            hub.say(Abort(request))
        server = chance.choice(self.servers)
        number = chance.randint(max(0, self.instances - 3), self.instances)
        hub.say(Grant(request, f"i{number}-{server.port}", "127.0.0.1", server.port))

    def change_mind(self) -> None:
        chance = self.chance
        server = chance.choice(self.servers)
        name = f"i{self.instances}-{server.port}"
        self.relay.hub.say(
            chance.choice((Close(name), Gone(name), Open(name, chance.choice(MODELS), "127.0.0.1", server.port, 2)))
        )
        self.instances += chance.randint(0, 1)


@pytest.mark.parametrize("seed", range(6))
async def test_every_request_ends_once_and_nothing_is_left(tmp_path: Path, seed: int) -> None:
    trouble: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: trouble.append(context))
    async with RunningRelay.open(tmp_path, msgspec.structs.replace(LIMITS, few=-1 if seed % 2 else 4)) as relay:
        chaos = Chaos(relay, random.Random(seed))
        chaos.servers = [await relay.server(chaos.script) for _ in range(3)]
        hub = asyncio.create_task(chaos.hub())
        await asyncio.gather(*[chaos.caller() for _ in range(CALLERS)])
        core = relay.core
        await until(lambda: not core.callers and not core.requests)
        await until(lambda: not any(one.exchanges for one in core.instances.values()))
        await relay.settled()
        hub.cancel()
        for message in relay.hub.messages:
            chaos.hear(message)
        assert not trouble
        assert chaos.answers > 20
        assert set(chaos.arrivals.values()) == {1}
        assert set(chaos.ends.values()) <= {1}
        assert set(chaos.arrivals) == set(chaos.ends) | (chaos.refused & set(chaos.arrivals))
        assert core.spool.held == core.writes.under_way == 0
        assert all(model.waiting == 0 for model in core.catalog.models.values())
        assert all(key.in_flight == 0 for key in core.catalog._keys.values())
        assert not any(isinstance(one, Exchange) for one in core.requests.values())
