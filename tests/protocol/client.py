"""A worker written from the protocol's page alone: aiohttp and json, nothing of Ostler's own.

It takes every message in order and fails on one that nobody expected: `expect` wants the very next message to be of its
type, `quiet` proves that nothing was said, and whoever leaves is asked for the latter once more.
"""

import asyncio
import itertools
import json
from dataclasses import dataclass
from typing import Any

import aiohttp

PATIENCE_S = 60.0
ABSENT: Any = object()
"""Leave this field out of the message."""

# What the page says that each message of a hub may carry: those that must be there, those that may.
FROM_HUB: dict[str, tuple[set[str], set[str]]] = {
    "ack": (set(), {"of", "task_id", "attempt", "attempts", "sent_at", "token"}),
    "job_assign": (
        {"spec", "attempt", "remaining_time"},
        {"devices", "index", "rank", "peers", "after", "line", "secrets"},
    ),
    "job_hint": (
        {"spec", "attempt", "remaining_time"},
        {"devices", "index", "rank", "peers"},
    ),
    "no_work": (set(), set()),
    "job_cancel": ({"task_id", "reason", "grace_seconds"}, {"attempt", "unstarted"}),
    "metrics_response": ({"text"}, set()),
    "log_request": ({"task_id", "attempt"}, {"offset", "follow", "reached"}),
    "relay_request": ({"relay_id", "task_id"}, {"attempt", "port", "url", "beside"}),
    "prewarm_hint": ({"task_id", "snapshot_id"}, {"snapshot_sha"}),
}


class Unexpected(AssertionError):
    """The hub said something else than was expected, or nothing."""


class Closed(Exception):
    """The hub closed the socket."""

    def __init__(self, code: int | None) -> None:
        super().__init__(f"closed with code {code}")
        self.code = code


@dataclass
class Assignment:
    """A `job_assign` as it came."""

    task_id: str
    attempt: str
    payload: dict[str, Any]

    @property
    def devices(self) -> list[int]:
        return list(self.payload.get("devices", []))

    def line(self, state: str = "running") -> dict[str, str]:
        """As a worker reports it in `active_tasks`."""
        return {"task_id": self.task_id, "attempt": self.attempt, "state": state}


class Worker:
    """One connection at a time; `connect` again after `drop`."""

    def __init__(self, url: str, token: str, name: str, capabilities: dict[str, Any], slots: int = 4) -> None:
        self.url = url.replace("http", "ws", 1) + "/v1/ws/worker"
        self.token = token
        self.name = name
        self.capabilities = capabilities
        self.slots = {"batch_total": slots, "batch_in_use": 0, "service_total": 0, "service_in_use": 0}
        self.holding: list[Assignment] = []
        self.protocol: dict[str, Any] = {"batch": True}
        """The extensions that it announces; a worker of version 1 has none."""
        self.batch = False
        self.largest_frame = 0
        """The most messages that came in one frame."""
        self._session: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._arrived: list[dict[str, Any]] = []
        self._numbers = itertools.count(1)

    # The connection

    async def connect(self) -> None:
        self._arrived.clear()
        self._session = aiohttp.ClientSession(headers={"Authorization": f"Bearer {self.token}"})
        self._socket = await self._session.ws_connect(self.url, autoping=True, max_msg_size=8 * 1024 * 1024)

    @property
    def connected(self) -> bool:
        return self._socket is not None and not self._socket.closed

    async def drop(self) -> None:
        """Close the socket without a word, as a cut does."""
        socket, session, self._socket, self._session = self._socket, self._session, None, None
        if socket is not None:
            await socket.close()
        if session is not None:
            await session.close()

    async def leave(self) -> None:
        """Close the socket after a last look for anything that nobody expected."""
        try:
            if self.connected:
                await self.quiet()
        finally:
            await self.drop()

    # Frames

    async def send_raw(self, frame: str | bytes) -> None:
        assert self._socket is not None
        if isinstance(frame, bytes):
            await self._socket.send_bytes(frame)
        else:
            await self._socket.send_str(frame)

    async def send(self, kind: str, **payload: Any) -> None:
        await self.send_raw(json.dumps(message(kind, **payload)))

    async def send_together(self, *messages: dict[str, Any]) -> None:
        """Several messages in one frame."""
        await self.send_raw(json.dumps(messages))

    async def receive(self, patience_s: float = PATIENCE_S) -> dict[str, Any]:
        """The next message, or Closed; its form is checked against the page."""
        if not self._arrived:
            self._arrived += await self._receive_frame(patience_s)
        found = self._arrived.pop(0)
        check_form(found)
        return found

    async def _receive_frame(self, patience_s: float) -> list[dict[str, Any]]:
        assert self._socket is not None
        try:
            received = await self._socket.receive(patience_s)
        except TimeoutError:
            raise Unexpected(f"{self.name} heard nothing for {patience_s:g} s") from None
        if received.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSING, aiohttp.WSMsgType.CLOSED):
            code = self._socket.close_code
            await self.drop()
            raise Closed(code)
        if received.type is not aiohttp.WSMsgType.TEXT:
            raise Unexpected(f"{self.name} got a frame that is not text: {received}")
        frame = json.loads(received.data)
        if isinstance(frame, list) and not self.batch:
            raise Unexpected(f"{self.name} got an array of messages without having asked for batches: {frame}")
        messages = frame if isinstance(frame, list) else [frame]
        self.largest_frame = max(self.largest_frame, len(messages))
        return messages

    async def expect(self, kind: str, **fields: Any) -> dict[str, Any]:
        """The payload of the very next message, which must be of this type and have these fields."""
        found = await self.receive()
        payload: dict[str, Any] = found.get("payload") or {}
        if found["type"] != kind or found.get("error"):
            raise Unexpected(f"{self.name} expected {kind} {fields or ''}, the hub said {found}")
        differing = {name: value for name, value in fields.items() if payload.get(name) != value}
        if differing:
            raise Unexpected(f"{self.name} expected {kind} with {differing}, the hub said {payload}")
        return payload

    async def expect_error(self) -> str:
        """The error text of the very next message, which must be an `ack` that carries one."""
        found = await self.receive()
        if found["type"] != "ack" or not found.get("error"):
            raise Unexpected(f"{self.name} expected an ack with an error, the hub said {found}")
        return str(found["error"])

    async def closed(self) -> int | None:
        """The code with which the hub closes this socket, which must be the next that happens."""
        try:
            found = await self.receive()
        except Closed as closed:
            return closed.code
        raise Unexpected(f"{self.name} expected to be closed, the hub said {found}")

    async def heard(self) -> list[dict[str, Any]]:
        """What has been said up to now: a result that nobody waits for is acknowledged, and that comes last."""
        nobody = f"nobody-{next(self._numbers)}"
        await self.send("job_result", task_id=nobody, attempt="none", state="failed", exit_code=1)
        said: list[dict[str, Any]] = []
        while True:
            found = await self.receive()
            if found["type"] == "ack" and (found.get("payload") or {}).get("task_id") == nobody:
                return said
            said.append(found)

    async def quiet(self) -> None:
        """Prove that nothing was said."""
        said = await self.heard()
        if said:
            raise Unexpected(f"{self.name} expected nothing, the hub said {said}")

    # What a worker says

    async def register(self, active: Any = (), **more: Any) -> dict[str, Any]:
        lines = [one.line() if isinstance(one, Assignment) else one for one in active]
        protocol = more.pop("protocol", self.protocol)
        self.batch = bool(protocol.get("batch"))
        fields = {"id": self.name, "capabilities": self.capabilities, "active_tasks": lines, "protocol": protocol}
        await self.send("register", **(fields | more))
        return await self.expect("ack", of="register")

    async def beat(self, active: Any = None, **more: Any) -> dict[str, Any]:
        """A heartbeat with the honest account of what was accepted; `active` says something else, or ABSENT nothing."""
        await self.send_beat(active, **more)
        return await self.expect("ack", of="heartbeat")

    async def send_beat(self, active: Any = None, **more: Any) -> None:
        told = self.holding if active is None else active
        lines = ABSENT if told is ABSENT else [one.line() if isinstance(one, Assignment) else one for one in told]
        fields = {"worker_id": self.name, "slots": self.honest_slots(), "capability": self.capabilities}
        await self.send("heartbeat", **(fields | {"active_tasks": lines} | more))

    def honest_slots(self) -> dict[str, int]:
        return self.slots | {"batch_in_use": max(self.slots["batch_in_use"], len(self.holding))}

    async def ask(self, **more: Any) -> None:
        fields = {"worker_id": self.name, "slots": self.honest_slots(), "reason": "idle"}
        await self.send("ready_for_work", **(fields | more))

    async def assigned(self, task_id: str | None = None) -> Assignment:
        """The assignment that must come next."""
        payload = await self.expect("job_assign")
        found = Assignment(payload["spec"]["id"], payload["attempt"], payload)
        if task_id is not None and found.task_id != task_id:
            raise Unexpected(f"{self.name} expected {task_id}, got {found.task_id}")
        return found

    async def accept(self, task: Assignment) -> None:
        """Accepted, and the hub has taken it: an acceptance that counts is answered by nothing."""
        await self.send("job_accepted", task_id=task.task_id, attempt=task.attempt)
        self.holding.append(task)
        await self.quiet()

    async def take(self, task_id: str | None = None) -> Assignment:
        """The next assignment, accepted."""
        task = await self.assigned(task_id)
        await self.accept(task)
        return task

    async def take_all(self, *task_ids: str) -> list[Assignment]:
        """These tasks, sent one after the other without waiting for an answer; then all accepted."""
        tasks = [await self.assigned(task_id) for task_id in task_ids]
        for task in tasks:
            await self.accept(task)
        return tasks

    async def end(self, task: Assignment, state: str = "succeeded", exit_code: int | None = 0, **more: Any) -> None:
        """Its result, acknowledged."""
        await self.send(
            "job_result", task_id=task.task_id, attempt=task.attempt, state=state, exit_code=exit_code, **more
        )
        self.forget(task)
        await self.expect("ack", of="job_result", task_id=task.task_id, attempt=task.attempt)

    def forget(self, task: Assignment) -> None:
        self.holding = [held for held in self.holding if held.attempt != task.attempt]


def message(kind: str, **payload: Any) -> dict[str, Any]:
    return {"type": kind, "payload": {name: value for name, value in payload.items() if value is not ABSENT}}


def check_form(found: Any) -> None:
    """The message has the page's envelope and, for its type, the page's fields and no others."""
    if not isinstance(found, dict) or not isinstance(found.get("type"), str):
        raise Unexpected(f"not a message: {found!r}")
    if set(found) - {"type", "payload", "error"}:
        raise Unexpected(f"fields that no envelope has: {found}")
    if found["type"] not in FROM_HUB:
        raise Unexpected(f"a type that no hub sends to a worker: {found}")
    must, may = FROM_HUB[found["type"]]
    fields = set(found.get("payload") or {})
    if not must <= fields <= must | may:
        raise Unexpected(f"{found['type']}: fields {sorted(fields)}, the page has {sorted(must)} and {sorted(may)}")
    remaining = (found.get("payload") or {}).get("remaining_time", 0)
    if not isinstance(remaining, int):
        raise Unexpected(f"remaining_time is not a whole number of nanoseconds: {remaining!r}")


async def connect_refused(url: str, token: str) -> int:
    """The HTTP status with which a socket is refused before it is opened."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with aiohttp.ClientSession(headers=headers) as session:
        try:
            async with asyncio.timeout(PATIENCE_S), session.ws_connect(url.replace("http", "ws", 1) + "/v1/ws/worker"):
                raise Unexpected("the hub opened the socket")
        except aiohttp.WSServerHandshakeError as refused:
            return refused.status
