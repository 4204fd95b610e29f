"""A model server that does what a test says: `server.py PORT NAME CONTROL [slow]`.

It tells the control port of the test when it has begun, what it is asked, and who has left. A request whose body has
`hold` is answered piece by piece, as the control port says; any other at once. With `slow` it is healthy when the control port says so.
"""

import asyncio
import itertools
import json
import os
import sys
from typing import Any

TOKENS = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


class Server:
    def __init__(self, name: str, slow: bool) -> None:
        self.name = name
        self.healthy = not slow
        self._numbers = itertools.count(1)
        self._orders: dict[int, asyncio.Queue[dict[str, Any]]] = {}

    async def run(self, port: int, control: int) -> None:
        reader, self._control = await asyncio.open_connection("127.0.0.1", control)
        server = await asyncio.start_server(self._connected, "127.0.0.1", port)
        self._tell(event="began", pid=os.getpid(), port=port)
        async with server:
            await self._obey(reader)

    def _tell(self, **news: Any) -> None:
        self._control.write(json.dumps({"model": self.name, **news}).encode() + b"\n")

    async def _obey(self, reader: asyncio.StreamReader) -> None:
        """Until the test is over."""
        while line := await reader.readline():
            order = json.loads(line)
            if "healthy" in order:
                self.healthy = order["healthy"]
            elif order["request"] in self._orders:
                self._orders[order["request"]].put_nowait(order)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                first, *lines = head.strip().split("\r\n")
                headers = {key.lower(): value for key, _, value in (line.partition(": ") for line in lines)}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                await self._answer(first.split(" ")[1], json.loads(body or b"{}"), reader, writer)
        except (OSError, EOFError):
            pass
        finally:
            writer.close()

    async def _answer(
        self, path: str, asked: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if path == "/health":
            _whole(writer, b"{}", 200 if self.healthy else 503)
            return
        number = next(self._numbers)
        self._tell(event="asked", request=number, path=path, body=asked)
        if "hold" in asked:
            self._orders[number] = asyncio.Queue()
            await self._as_told(number, bool(asked.get("stream")), reader, writer)
        elif asked.get("stream"):
            _begin_stream(writer)
            for piece in ("hello ", f"from {self.name}"):
                _event(writer, self._piece(piece))
            _end_stream(writer)
        else:
            _whole(writer, self._completion(f"hello from {self.name}"))
        await writer.drain()

    async def _as_told(
        self, number: int, stream: bool, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        text = ""
        if stream:
            _begin_stream(writer)
        hang_up = asyncio.ensure_future(reader.read(1))
        try:
            while True:
                order = asyncio.ensure_future(self._orders[number].get())
                await asyncio.wait({order, hang_up}, return_when=asyncio.FIRST_COMPLETED)
                if not order.done():
                    order.cancel()
                    self._tell(event="left", request=number)
                    raise EOFError
                said = order.result().get("say", "")
                text += said
                if stream and said:
                    _event(writer, self._piece(said))
                if order.result().get("end"):
                    break
            _end_stream(writer) if stream else _whole(writer, self._completion(text))
        finally:
            del self._orders[number]
            hang_up.cancel()
            await asyncio.wait({hang_up})

    def _completion(self, text: str) -> bytes:
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        document = {"id": "1", "object": "chat.completion", "created": 1, "model": self.name, "choices": [choice]}
        return json.dumps(document | {"usage": TOKENS}).encode()

    def _piece(self, text: str) -> str:
        choice = {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}
        document = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": self.name, "choices": [choice]}
        return json.dumps(document)


def _whole(writer: asyncio.StreamWriter, body: bytes, status: int = 200) -> None:
    head = f"HTTP/1.1 {status} -\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


def _begin_stream(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")


def _event(writer: asyncio.StreamWriter, text: str) -> None:
    data = f"data: {text}\n\n".encode()
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))


def _end_stream(writer: asyncio.StreamWriter) -> None:
    _event(writer, "[DONE]")
    writer.write(b"0\r\n\r\n")


if __name__ == "__main__":
    asyncio.run(Server(sys.argv[2], "slow" in sys.argv[4:]).run(int(sys.argv[1]), int(sys.argv[3])))
