"""Thousands of workers in one process: the protocol over real sockets, and next to nothing behind it.

Each connects, registers, beats and comes back as a worker does, with a worker's own pauses between tries, and holds
whatever it is given for ever. Frames are made by hand, so that the crowd costs less than the hub that it is
measured with.
"""

import asyncio
import base64
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

from ostler.worker.connection import CONNECT_S, Pauses

BEAT_S = 10.0
TICK_S = 0.05
TEXT, CLOSE, PING, PONG = 0x81, 0x88, 0x89, 0x8A
_ACK_OF_BEAT, _ACK_OF_REGISTER, _ASSIGN = b'"of":"heartbeat"', b'"of":"register"', b'"job_assign"'


def masked(opcode: int, payload: bytes) -> bytes:
    """A client's frame. Its key is zero, which leaves the payload as it is."""
    size = len(payload)
    if size < 126:
        return bytes((opcode, 0x80 | size)) + b"\0\0\0\0" + payload
    if size < 65536:
        return bytes((opcode, 0xFE)) + size.to_bytes(2, "big") + b"\0\0\0\0" + payload
    return bytes((opcode, 0xFF)) + size.to_bytes(8, "big") + b"\0\0\0\0" + payload


def capabilities(name: str, gpus: int = 4) -> dict[str, Any]:
    """A machine with GPUs, each with a name of its own as drivers give them."""
    devices = [
        {"index": number, "uuid": f"GPU-{name}-{number}", "name": "NVIDIA A100-SXM4-80GB", "vram_gb": 80.0}
        for number in range(gpus)
    ]
    return {
        "gpu_backend": "nvidia",
        "gpu_count": gpus,
        "gpu_type": "A100",
        "vram_gb": 80.0 * gpus,
        "cpu_count": 64.0,
        "memory_gb": 512.0,
        "hostname": name,
        "devices": devices,
        "labels": {"rack": name[-2:], "zone": "a"},
        "disk_free_gb": 812.4,
        "os": "linux",
        "arch": "x86_64",
        "python": "3.11",
    }


class ModelWorker(asyncio.Protocol):
    def __init__(self, crowd: "Crowd", name: str, slots: int = 1) -> None:
        self.crowd = crowd
        self.name = name
        self.slots = slots
        self.capabilities = capabilities(name)
        self.held: list[dict[str, str]] = []
        self.registered = False
        self.closed_with = 0
        self.pauses = Pauses()
        self.come_back_s = 0.0
        self._transport: asyncio.Transport | None = None
        self._upgraded = False
        self._received = b""
        self._beat_at = 0.0
        self._beat = b""

    async def connect(self) -> None:
        loop = asyncio.get_running_loop()
        self._upgraded, self._received, self.come_back_s = False, b"", 0.0
        try:
            async with asyncio.timeout(CONNECT_S):
                await loop.create_connection(lambda: self, self.crowd.host, self.crowd.port)
        except (OSError, TimeoutError):
            self.crowd.again(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self.crowd.upgrade)
        self.crowd.counts["connections"] += 1

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self.registered:
            self.registered = False
            self.crowd.registered -= 1
            self.crowd.changed()
        self.crowd.again(self)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._upgraded and not self._open():
            return
        while (found := _frame(self._received)) is not None:
            opcode, payload, used = found
            self._received = self._received[used:]
            self._take(opcode, payload)

    def _open(self) -> bool:
        head, found, rest = self._received.partition(b"\r\n\r\n")
        if not found:
            return False
        if not head.startswith(b"HTTP/1.1 101"):
            self.crowd.counts[f"HTTP {head[9:12].decode()}"] += 1
            self.come_back_s = _retry_after(head)
            assert self._transport is not None
            self._transport.close()
            return False
        self._upgraded, self._received = True, rest
        self._say("register", {**self._hello(), "boot_id": "b", "protocol": {"batch": True}})
        self.beat()
        return True

    def _hello(self) -> dict[str, Any]:
        return {"id": self.name, "capabilities": self.capabilities, "active_tasks": self.held}

    def _take(self, opcode: int, payload: bytes) -> None:
        if opcode == PING:
            self._write(masked(PONG, payload))
        elif opcode == CLOSE:
            self.crowd.counts[f"closed {int.from_bytes(payload[:2], 'big')}"] += 1
            if self._transport is not None:
                self._transport.close()
        elif opcode == TEXT:
            if _ACK_OF_REGISTER in payload and not self.registered:
                self.registered = True
                self.pauses.start_over()
                self.crowd.registered += 1
                self.crowd.changed()
            if _ACK_OF_BEAT in payload:
                self.crowd.answered_s.append(time.perf_counter() - self._beat_at)
            if _ASSIGN in payload:
                self._assigned(json.loads(payload))

    def _assigned(self, said: Any) -> None:
        for one in said if isinstance(said, list) else [said]:
            if one["type"] == "job_assign":
                line = {"task_id": one["payload"]["spec"]["id"], "attempt": one["payload"]["attempt"]}
                if any(held["attempt"] == line["attempt"] for held in self.held):
                    continue  # sent twice, as it may be
                self.held.append({**line, "state": "running"})
                self._beat = b""
                self._say("job_accepted", line)
                self.crowd.counts["assigned"] += 1
                self.crowd.changed()

    def beat(self) -> None:
        """The whole offer again, as in every heartbeat; only the time in it is new."""
        if not self._beat:
            slots = {"batch_total": self.slots, "batch_in_use": len(self.held), "service_total": 0, "service_in_use": 0}
            said = {"worker_id": self.name, "slots": slots, "capability": self.capabilities, "active_tasks": self.held}
            self._beat = json.dumps({"type": "heartbeat", "payload": {"sent_at": "@", **said}}).encode()
        self._beat_at = time.perf_counter()
        self.crowd.counts["beats"] += 1
        self._write(masked(TEXT, self._beat.replace(b'"@"', b"%.6f" % self._beat_at, 1)))

    def drop(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _say(self, kind: str, payload: dict[str, Any]) -> None:
        self._write(masked(TEXT, json.dumps({"type": kind, "payload": payload}).encode()))

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


class Crowd:
    def __init__(self, host: str, port: int, token: str, size: int, first: str = "w") -> None:
        self.host, self.port = host, port
        key = base64.b64encode(os.urandom(16)).decode()
        self.upgrade = (
            f"GET /v1/ws/worker HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\nAuthorization: Bearer {token}\r\n\r\n"
        ).encode()
        self.counts: Counter[str] = Counter()
        self.answered_s: list[float] = []
        """From each heartbeat to its answer."""
        self.registered = 0
        self._changed = asyncio.Event()
        self._connecting: set[asyncio.Task[None]] = set()
        self._closed = False
        self.workers = [ModelWorker(self, f"{first}{number:05d}") for number in range(size)]

    def start(self) -> None:
        """All at once."""
        for worker in self.workers:
            self._connect(worker)

    def again(self, worker: ModelWorker) -> None:
        """After a worker's own pause, or the one that the hub asked for."""
        if not self._closed:
            pause_s = worker.come_back_s or worker.pauses.next_s()
            asyncio.get_running_loop().call_later(pause_s, self._connect, worker)

    def changed(self) -> None:
        self._changed.set()

    async def until(self, holds: Callable[["Crowd"], bool], timeout_s: float) -> float:
        """How long it took."""
        begun = time.perf_counter()
        async with asyncio.timeout(timeout_s):
            while not holds(self):
                self._changed.clear()
                await self._changed.wait()
        return time.perf_counter() - begun

    async def all_registered(self, timeout_s: float) -> float:
        return await self.until(lambda crowd: crowd.registered == len(crowd.workers), timeout_s)

    async def beat(self) -> None:
        """For ever: each worker once in ten seconds, spread evenly."""
        at, begun, sent = 0, time.perf_counter(), 0
        while True:
            await asyncio.sleep(TICK_S)
            due = int((time.perf_counter() - begun) / BEAT_S * len(self.workers))
            for _ in range(due - sent):
                worker = self.workers[at]
                at = (at + 1) % len(self.workers)
                if worker.registered:
                    worker.beat()
            sent = due

    def leave(self) -> None:
        """All at once, without a word."""
        self._closed = True
        for worker in self.workers:
            worker.drop()

    def _connect(self, worker: ModelWorker) -> None:
        if not self._closed:
            task = asyncio.get_running_loop().create_task(worker.connect())
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)


def _retry_after(head: bytes) -> float:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"retry-after":
            return float(value) - random.random()
    return 0.0


def _frame(data: bytes) -> tuple[int, bytes, int] | None:
    """The first frame: what it is, its payload, its length with its head. None: it is not whole yet."""
    if len(data) < 2:
        return None
    size, start = data[1] & 0x7F, 2
    if size == 126:
        size, start = int.from_bytes(data[2:4], "big"), 4
    elif size == 127:
        size, start = int.from_bytes(data[2:10], "big"), 10
    if len(data) < start + size:
        return None
    return data[0], data[start : start + size], start + size
