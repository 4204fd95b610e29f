"""`/v1/jobs/{id}/exec`: a command beside a task that runs. The worker opens the way back, and the hub passes the bytes.

Whoever may change a job may do this, and nobody else: the task's secrets are in its environment. That it was done, and
with which command, is durable before the command begins.
"""

import asyncio
import shlex
from typing import Annotated

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from ostler.core.fleet import Fleet, Job
from ostler.domain import states
from ostler.domain.errors import BadInput, NotAllowed, NotRunning
from ostler.domain.finite import encode
from ostler.hub.api.jobs import JobsApi
from ostler.hub.api.jobs import Target as Named
from ostler.hub.audit import source_of
from ostler.hub.loop import Loop
from ostler.hub.relays import Relays, Target
from ostler.hub.sessions import Sessions
from ostler.wire.beside import START, frame

ACTION = "job.exec"
BEGINS_S = 30.0
"""For a caller that was let in to say what it wants."""
SILENT_S = 90.0
"""Whoever says nothing for so long has gone without a word: a caller says something every few seconds, if only that."""
MAX_START_BYTES = 256 * 1024
CLOSE_BAD, CLOSE_TROUBLE = 4422, 4503
MAX_REASON_BYTES = 120

Side = Annotated[int, msgspec.Meta(ge=0, le=65_535)]


class Wanted(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a caller says first, as text. All that follows is frames of `wire/beside.py`."""

    argv: list[str] = []
    """Empty: a shell."""
    tty: bool = False
    rows: Side = 24
    cols: Side = 80
    term: Annotated[str, msgspec.Meta(max_length=64, pattern=r"^[A-Za-z0-9._+-]*$")] = ""


class Beside:
    def __init__(self, loop: Loop, jobs: JobsApi, sessions: Sessions, relays: Relays) -> None:
        self._loop = loop
        self._jobs = jobs
        self._sessions = sessions
        self._relays = relays

    async def serve(self, socket: WebSocket) -> None:
        caller = socket.scope["ostler.caller"]
        named = await self._jobs.find(caller, socket.path_params["id"], changing=True)
        target = await self._loop.look(lambda fleet, _: _running(fleet, named))
        if not self._sessions.runs_beside(target.session):
            told = "where it runs, is older than the hub and runs nothing beside its tasks; update Ostler there"
            raise NotRunning(f"{target.worker_id}, {told}")
        await socket.accept()
        try:
            wanted = await _said(socket)
            command = shlex.join(wanted.argv) or "a shell"
            self._loop.audit.note(caller, ACTION, f"job/{target.task_id}", source_of(socket.scope), detail=command)
            await self._loop.turn()
            trouble = await self._relays.join(target, Heard(socket, wanted), Told(socket), beside=True)
            await _close(socket, CLOSE_TROUBLE if trouble else 1000, str(trouble or ""))
        except BadInput as error:
            await _close(socket, CLOSE_BAD, str(error))
        except (WebSocketDisconnect, RuntimeError):
            return  # whoever asked has left


class Heard:
    """What the caller says, for the worker; first of all, what it wants."""

    def __init__(self, socket: WebSocket, wanted: Wanted) -> None:
        self._socket = socket
        self._first = frame(START, encode(wanted))

    async def read(self, size: int) -> bytes:
        if self._first:
            first, self._first = self._first, b""
            return first
        try:
            async with asyncio.timeout(SILENT_S):
                received = await self._socket.receive()
        except TimeoutError:
            return b""
        return received.get("bytes") or b""


class Told:
    """What the worker says, for the caller, no faster than it takes it."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._waiting = b""

    def write(self, data: bytes) -> None:
        self._waiting += data

    async def drain(self) -> None:
        waiting, self._waiting = self._waiting, b""
        await self._socket.send_bytes(waiting)


def _running(fleet: Fleet, named: Named) -> Target:
    job = fleet.jobs.get(named.job.id)
    if named.index is None and named.job.size:
        raise BadInput(f"{named.job.id} has {named.job.size} tasks; name one of them, like {named.job.id}.0")
    if named.job.terms.model:
        raise NotAllowed("a model's process belongs to the gateway: nothing is run beside it")
    task = fleet.find_task(named.task_id) if job is not None else None
    if task is None or task.holder is None or task.state != states.RUNNING:
        state = task.state if task is not None else _state_without_task(job, named)
        raise NotRunning(f"{named.task_id} is {state}: a command can only be run beside a task that is running")
    worker = fleet.workers[task.holder.worker_id]
    if not worker.connected:
        raise NotRunning(f"{worker.id}, where it runs, is not connected")
    return Target(task_id=task.id, attempt=task.attempt, worker_id=worker.id, session=worker.session)


def _state_without_task(job: Job | None, named: Named) -> str:
    if job is None or named.index is None:
        return named.job.state
    return states.PENDING if job.has_waiting(named.index) else "over"


async def _said(socket: WebSocket) -> Wanted:
    try:
        async with asyncio.timeout(BEGINS_S):
            text = await socket.receive_text()
    except (TimeoutError, KeyError):
        raise BadInput("the first message is a text that says what to run") from None
    if len(text) > MAX_START_BYTES:
        raise BadInput(f"the command has over {MAX_START_BYTES} characters")
    try:
        return msgspec.json.decode(text, type=Wanted)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise BadInput(f"exec: {error}") from None


async def _close(socket: WebSocket, code: int, reason: str) -> None:
    if WebSocketState.DISCONNECTED not in (socket.client_state, socket.application_state):
        try:
            await socket.close(code, reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore"))
        except (RuntimeError, OSError):
            return  # it has left meanwhile
