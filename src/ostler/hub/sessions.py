"""The workers' sockets: frames in become events, effects become frames out. No decision is made here."""

import base64
import binascii
import itertools
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable

import msgspec
from starlette.websockets import WebSocket

from ostler.core.effects import (
    Acknowledge,
    AssignTask,
    CloseSession,
    HintSnapshot,
    ToWorker,
)
from ostler.core.events import (
    Event,
    ServiceReported,
    TaskAccepted,
    TaskEnded,
    WorkerAsked,
    WorkerBeat,
    WorkerLeft,
    WorkerRegistered,
)
from ostler.domain import states
from ostler.domain.secrets import names_some
from ostler.domain.worker import ActiveTask
from ostler.hub.access import Caller
from ostler.hub.artifacts import Artifacts
from ostler.hub.connections import LINGERS_S
from ostler.hub.permissions import messages_of
from ostler.hub.saying import Saying, saying, to_message
from ostler.hub.session import HANDED_OVER, Session
from ostler.wire import messages
from ostler.wire.messages import Frame, MalformedFrame

RESULT_STATES = ("succeeded", "completed", "failed", "cancelled", "returned")
MAX_RESULT_BYTES = 64 * 1024
CLOSE_NOT_ALLOWED = 1008
MAX_HEARD = 4 * 1024 * 1024
"""What one worker may say before the loop has taken it: then its socket is left unread until the loop has."""
MOST_HINTS = 64
EACH_MESSAGE = 1024
"""What a message takes in memory whatever it says."""


class Sessions:
    def __init__(self, post: Callable[[Event], None], metrics_text: Callable[[], str], artifacts: Artifacts) -> None:
        self._post = post
        self._artifacts = artifacts
        self._metrics_text = metrics_text
        self._numbers = itertools.count(1)
        self._open: dict[int, Session] = {}
        self._heard: dict[int, int] = {}
        """What the sessions have said that waits for the loop."""
        self._held: set[Session] = set()
        self._hinted: dict[str, deque[str]] = {}
        """The snapshots that workers were told to fetch beforehand, the newest of them."""
        self.wall: Callable[[], float] = time.time
        self.hubs: Callable[[], list[str]] = list
        """Where the hubs on this ledger are reached, where there are several."""
        self.refused: Callable[[Caller, str, str, str], None] = lambda *_: None
        """Hears of whoever would speak for another worker: what, why, and from where."""
        self.secrets: Callable[[bytes], dict[str, str]] = lambda spec: {}
        """What goes with the assignment of the job of this spec."""
        self.sampled: Callable[[list[ActiveTask], float], None] = lambda tasks, at: None
        """Hears what running tasks take at the moment."""

    def __len__(self) -> int:
        return len(self._open)

    async def serve(self, socket: WebSocket) -> None:
        """A worker has connected: from here on its session hears it."""
        await socket.accept()
        address = socket.client.host if socket.client else ""
        session = Session(self, next(self._numbers), socket.scope["ostler.caller"], address)
        self._open[session.number] = session
        socket.scope[HANDED_OVER](session)

    def hinted(self, worker_id: str) -> Collection[str]:
        return self._hinted.get(worker_id, ())

    def lost(self, session: Session) -> None:
        del self._open[session.number]
        self._hinted.pop(session.worker_id, None)
        if session.worker_id:
            self._post(WorkerLeft(worker_id=session.worker_id, session=session.number, reason=session.why_left))

    def heard(self, session: Session, data: str | bytes) -> None:
        """Each message for itself: what cannot be read is said back, and the others of the frame count."""
        expires_at = session.caller.expires_at
        if expires_at is not None and expires_at <= self.wall():
            session.close(CLOSE_NOT_ALLOWED, "the token has expired")
            return
        found = messages.decode(data, messages_of(session.caller.role))
        self._count(session, len(data) + EACH_MESSAGE * len(found))
        for frame in found:
            if session.number not in self._open:
                return  # it was closed in the midst of this
            try:
                if isinstance(frame, MalformedFrame):
                    raise frame
                self._take_frame(session, frame)
            except MalformedFrame as error:
                session.send_message(messages.Ack(), str(error))

    def _count(self, session: Session, size: int) -> None:
        heard = self._heard[session.number] = self._heard.get(session.number, 0) + size
        if heard > MAX_HEARD:
            self._held.add(session)
            session.hold(True)

    def taken(self) -> None:
        """The loop has taken all that was said: who had said too much may go on."""
        self._heard.clear()
        held, self._held = self._held, set()
        for session in held:
            session.hold(False)

    def _take_frame(self, session: Session, frame: Frame) -> None:
        message = frame.message
        if isinstance(message, messages.Register):
            self._register(session, message)
        elif not session.worker_id:
            raise MalformedFrame(f"{frame.type}: the first message must be register")
        elif isinstance(message, messages.MetricsRequest):
            session.send_message(messages.MetricsResponse(text=self._metrics_text()))
        else:
            if isinstance(message, messages.Heartbeat) and message.active_tasks:
                self.sampled(message.active_tasks, self.wall())
            event = to_event(message, session.worker_id, session.number)
            if isinstance(event, TaskEnded):
                event.artifact = self._artifacts.brought(event.artifact_id, event.task_id)
            if event is not None:
                self._post(event)

    def _register(self, session: Session, message: messages.Register) -> None:
        if session.worker_id and session.worker_id != message.id:
            raise MalformedFrame(f"register: this connection already speaks for {session.worker_id}")
        if not session.caller.may_speak_for(message.id):
            error = f"register: the token is that of {session.caller.user}, not of {message.id}"
            self.refused(session.caller, f"register {message.id}", error, session.address)
            session.send_message(messages.Ack(), error)
            session.close(CLOSE_NOT_ALLOWED, "this token is another worker's")
            return
        session.worker_id = message.id
        session.batches, session.beside = message.protocol.batch, message.protocol.beside
        session.hints, session.lines = message.protocol.hints, message.protocol.lines
        session.plain = message.protocol.is_plain
        self._post(
            WorkerRegistered(
                worker_id=message.id,
                session=session.number,
                capabilities=message.capabilities,
                active_tasks=message.active_tasks,
                boot_id=message.boot_id,
                ahead=message.protocol.ahead,
                is_plain=message.protocol.is_plain,
                address=message.capabilities.address or session.address,
            )
        )

    def perform(self, effects: Iterable[ToWorker], specs: dict[str, bytes]) -> None:
        """Put effects on their wires; a socket that has gone meanwhile is the next comparison's business."""
        last: dict[int, Saying] = {}
        for effect in effects:
            session = self._open.get(effect.session)
            if session is None:
                continue
            before = last.get(session.number)
            if before is None or not before.takes(effect):
                if before is not None:
                    self._say(session, before)
                last[session.number] = saying(effect, specs, together=session.lines, plain=session.plain)
        for number, one in last.items():
            session = self._open.get(number)
            if session is not None:
                self._say(session, one)  # which may be the end of it, if it does not read
                if isinstance(one.first, AssignTask):
                    session.flush()  # it is begun while others are told

    def _say(self, session: Session, one: Saying) -> None:
        effect = one.first
        if isinstance(effect, CloseSession):
            if effect.taken_over:
                session.close(messages.CLOSE_TAKEN_OVER, "another connection registered this worker's id")
            else:
                session.close(messages.CLOSE_REGISTER_AGAIN, "silent for too long: connect and register again")
            return
        if isinstance(effect, HintSnapshot):
            self._hinted.setdefault(session.worker_id, deque(maxlen=MOST_HINTS)).append(effect.snapshot)
        for message in one.messages():
            if isinstance(message, messages.Ack) and message.of == "register":
                message.hubs = self.hubs()
            if isinstance(message, messages.JobAssign) and (spec := one.names_secrets):
                message.secrets = self.secrets(spec)
            session.send_message(message, unhurried=isinstance(effect, Acknowledge) and effect.of == "job_result")

    def hint(self, effect: AssignTask, spec: bytes) -> None:
        """Of an assignment that is being written down. What is secret is no part of it."""
        session = self._open.get(effect.session)
        if session is not None and session.hints and not effect.after and not names_some(spec):
            message = to_message(effect, {effect.job_id: spec})
            session.send(messages.encode(message, kind=messages.JobHint))
            session.flush()

    def ask_for_log(self, session: int, request: messages.LogRequest) -> None:
        found = self._open.get(session)
        if found is not None:
            found.send_message(request)

    def ask_for_relay(self, session: int, request: messages.RelayRequest) -> str:
        """Returns why the worker cannot be asked; "" if it was."""
        found = self._open.get(session)
        if found is None:
            return "is not connected"
        if found.plain:
            return "speaks version 1 of the worker protocol, which has no connections to services and models"
        found.send_message(request)
        return ""

    def runs_beside(self, session: int) -> bool:
        """Whether the worker of this socket can run commands beside its tasks: older ones cannot."""
        found = self._open.get(session)
        return found is not None and found.beside

    def cut(self, token_id: str) -> None:
        """Whoever came with this token is no longer let in."""
        for session in list(self._open.values()):
            if session.caller.token_id == token_id:
                session.close(CLOSE_NOT_ALLOWED, "the token is good no more: it was revoked, or has expired", LINGERS_S)

    def is_here(self, worker_id: str, token_id: str) -> bool:
        """Whether the worker of this name is connected, and came with this token."""
        return bool(self._of(worker_id, token_id))

    def hand_token(self, worker_id: str, old: str, secret: str) -> None:
        """Give the worker that came with the old token a new one."""
        for session in self._of(worker_id, old):
            session.send_message(messages.Ack(of="token", token=secret))

    def _of(self, worker_id: str, token_id: str) -> list[Session]:
        found = self._open.values()
        return [one for one in found if one.worker_id == worker_id and one.caller.token_id == token_id]

    def inherit(self, old: str, new: Caller) -> None:
        """Whoever came with the old token is here with the new one."""
        for session in self._open.values():
            if session.caller.token_id == old:
                session.caller = new

    def close_all(self) -> None:
        for session in list(self._open.values()):
            session.close(1012, "the hub is restarting")


def to_event(message: messages.Message, worker_id: str, session: int) -> Event | None:
    match message:
        case messages.Heartbeat():
            return WorkerBeat(
                worker_id=worker_id,
                session=session,
                slots=message.slots,
                capabilities=message.capability,
                active_tasks=None if message.active_tasks is msgspec.UNSET else message.active_tasks,
                sent_at=message.sent_at,
                draining=message.draining,
            )
        case messages.ReadyForWork():
            return WorkerAsked(worker_id=worker_id, session=session, slots=message.slots)
        case messages.JobAccepted():
            return TaskAccepted(worker_id=worker_id, session=session, task_id=message.task_id, attempt=message.attempt)
        case messages.JobResult():
            return _ended(message, worker_id, session)
        case messages.ServiceHealth():
            return ServiceReported(
                worker_id=worker_id,
                session=session,
                task_id=message.task_id,
                healthy=message.healthy,
                message=message.message,
                port=message.port,
            )
        case _:
            return None


def _ended(message: messages.JobResult, worker_id: str, session: int) -> TaskEnded:
    state, error = message.state, message.error
    if state not in RESULT_STATES:
        # Refused, it would come again for ever, and its task would count as running as long.
        state, error = states.FAILED, "; ".join(filter(None, (f"unknown result state {state[:64]!r}", error)))
    try:
        result = base64.b64decode(message.result, validate=True) if message.result else None
    except (binascii.Error, ValueError):
        raise MalformedFrame("job_result: result is not base64") from None
    if len(message.result) > MAX_RESULT_BYTES:
        raise MalformedFrame(f"job_result: result has over {MAX_RESULT_BYTES} bytes; upload it as a blob")
    return TaskEnded(
        worker_id=worker_id,
        session=session,
        task_id=message.task_id,
        attempt=message.attempt,
        state=state,
        exit_code=message.exit_code,
        error=error,
        fault=message.fault,
        artifact_id=message.artifact_id,
        metrics=messages.told_metrics(message.metrics),
        checkpoint_id=message.checkpoint_id,
        result_id=message.result_id,
        result=result,
        run_s=message.run_s,
        peak_memory_mib=message.peak_memory_mib,
        peak_vram_mib=message.peak_vram_mib,
        lacked=message.lacked,
    )
