"""The two ends of what is measured: a model server that does nothing, and callers."""

import asyncio
import itertools
import json
import time
from collections.abc import Callable
from typing import Any

import uvloop

SECRET = "benchmark"
LENGTHS = 8
NUMBER = "999999"
END = b'"usage":{"prompt_tokens":12,"completion_tokens":34,"total_tokens":46}}'
ANSWERS = itertools.cycle(
    b'{"id":"chatcmpl-1","choices":[{"message":{"content":"' + b"word " * (56 + words) + b'"}}],' + END
    for words in range(LENGTHS)
)
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


# The model server


class ModelServer(asyncio.Protocol):
    """Answers a request that came in one piece, as all of ours do."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        head, _, body = data.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        if len(body) < length:
            raise SystemExit("gateway: a request came in pieces, for which this model server is too simple")
        if b'"stream":true' in body:
            wanted = json.loads(body)
            self.transport.write(STREAM_HEAD)
            self.every_s = 1 / wanted["rate"]
            self.left = wanted["tokens"]
            self.due = asyncio.get_running_loop().time() + self.every_s * wanted["phase"]
            self.speak()
        else:
            answer = next(ANSWERS)
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(answer)
            self.transport.write(head + answer)

    def speak(self) -> None:
        if self.transport.is_closing():
            return
        if self.left == 0:
            self.transport.write(LAST)
            return
        self.left -= 1
        event = b'data: {"choices":[{"delta":{"content":"word"}}],"t":%d}\n\n' % time.monotonic_ns()
        self.transport.write(b"%x\r\n%b\r\n" % (len(event), event))
        self.due += self.every_s
        asyncio.get_running_loop().call_at(self.due, self.speak)


def serve_model(port: Any) -> None:
    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(ModelServer, "127.0.0.1", 0, backlog=2048)
        port.send(server.sockets[0].getsockname()[1])
        await asyncio.Event().wait()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())


# The load


def chat(words: int = 20, header: str = "", **more: Any) -> bytes:
    messages = [
        {"role": "system", "content": "You are helpful. " * 20},
        {"role": "user", "content": "Hello there. " * words},
    ]
    fields = {"messages": messages, "model": "small", "temperature": 0.7, **more}
    body = json.dumps(fields, separators=(",", ":")).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {SECRET}\r\n"
        "User-Agent: OpenAI/Python 1.60.0\r\nAccept: application/json\r\nAccept-Encoding: gzip, deflate\r\n"
        f"Content-Type: application/json\r\nX-Stainless-Lang: python\r\n{header}Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Asker(asyncio.Protocol):
    """One request after the other, as many as there are left for all."""

    def __init__(self, left: list[int], took_s: list[float], ended: Callable[[], None], traced: bool) -> None:
        self.left, self.took_s, self.ended = left, took_s, ended
        header = f"X-Request-Id: {NUMBER}\r\n" if traced else ""
        self.requests = itertools.cycle(chat(16 + one, header) for one in range(LENGTHS))
        self.traced = traced

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def ask(self) -> None:
        if self.left[0] == 0:
            self.ended()
            return
        self.left[0] -= 1
        request = next(self.requests)
        if self.traced:
            request = request.replace(NUMBER.encode(), b"%06d" % self.left[0], 1)
        self.began = time.perf_counter()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        if not data.startswith(b"HTTP/1.1 200") and not data.endswith(END):
            raise SystemExit(f"gateway: not the answer: {data[:300]!r}")
        if data.endswith(END):
            self.took_s.append(time.perf_counter() - self.began)
            self.ask()


class Listener(asyncio.Protocol):
    """One stream; how late each event came. The first ones are late for all that begin together, and do not count."""

    def __init__(self, late_s: list[float], skip: int, ended: Callable[[], None]) -> None:
        self.late_s, self.skip, self.ended = late_s, skip, ended

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        for part in data.split(b'"t":')[1:]:
            if self.skip > 0:
                self.skip -= 1
                continue
            self.late_s.append((now - int(part.partition(b"}")[0])) / 1e9)
        if data.endswith(LAST):
            self.ended()


async def _all(port: int, protocols: list[Any], begin: Callable[[Any, int], None], ended: asyncio.Semaphore) -> None:
    loop = asyncio.get_running_loop()
    made = [(await loop.create_connection(lambda one=one: one, "127.0.0.1", port))[1] for one in protocols]
    for number, protocol in enumerate(made):
        begin(protocol, number)
    for _ in made:
        await ended.acquire()
    for protocol in made:
        protocol.transport.close()


def load(pipe: Any) -> None:
    """Does what it is told to until there is nothing more to do."""

    async def ask(port: int, connections: int, requests: int, traced: bool = False) -> list[float]:
        ended = asyncio.Semaphore(0)
        left, took_s = [requests], []
        askers = [Asker(left, took_s, ended.release, traced) for _ in range(connections)]
        await _all(port, askers, lambda asker, number: asker.ask(), ended)
        return sorted(took_s)

    async def listen(port: int, streams: int, rate: float, seconds: float) -> list[float]:
        ended = asyncio.Semaphore(0)
        late_s: list[float] = []
        listeners = [Listener(late_s, int(rate), ended.release) for _ in range(streams)]

        def begin(listener: Listener, number: int) -> None:
            more = {"stream": True, "rate": rate, "tokens": int(rate * seconds), "phase": number / streams}
            listener.transport.write(chat(**more))

        await _all(port, listeners, begin, ended)
        return sorted(late_s)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        while (order := pipe.recv()) is not None:
            pipe.send(runner.run({"ask": ask, "listen": listen}[order[0]](*order[1:])))
