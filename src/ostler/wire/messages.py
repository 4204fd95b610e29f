"""The messages of the worker protocol, version 2, and their codec. Nothing else sees their bytes.

A frame is one JSON object {"type", "payload", "error"}, or an array of them where both sides agreed on batches.
Unknown fields are ignored, so that either side may be newer.
"""

import math
from typing import Annotated, Any

import msgspec

from ostler.domain import nulls
from ostler.domain.finite import encode as _encode
from ostler.domain.worker import ActiveTask, Capabilities, Mib, Slots

MAX_FRAME_BYTES = 1024 * 1024
BATCH_BYTES = 32 * 1024
"""What is sent together: whoever reads it acts on the first of a thousand messages while the rest is still coming."""
CLOSE_TOO_LARGE = 1009
CLOSE_REGISTER_AGAIN = 4000
CLOSE_TAKEN_OVER = 4001
MAX_METRICS = 64
MAX_METRIC_NAME = 128

Id = Annotated[str, msgspec.Meta(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$(?!\n)")]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e10)]
ExitCode = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**32)]


class MalformedFrame(Exception):
    """The bytes are not a message of this protocol; the text says what and where."""


class Protocol(msgspec.Struct, kw_only=True, omit_defaults=True):
    batch: bool = False
    ahead: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    beside: bool = False
    """It runs commands beside tasks: a `relay_request` may ask for one."""
    hints: bool = False
    """It makes use of a `job_hint`."""
    lines: bool = False
    """It takes a `line` in an assignment, and `attempts` in an acknowledgement."""

    @property
    def is_plain(self) -> bool:
        """Whether the peer speaks version 1: it gets one task at a time, in the types that the original knows."""
        return not (self.batch or self.ahead)


class Register(msgspec.Struct, kw_only=True, omit_defaults=True):
    id: Id
    capabilities: Capabilities = msgspec.field(default_factory=Capabilities)
    active_tasks: list[ActiveTask] = []
    boot_id: str = ""
    protocol: Protocol = msgspec.field(default_factory=Protocol)


class Heartbeat(msgspec.Struct, kw_only=True, omit_defaults=True):
    worker_id: str = ""
    slots: Slots | None = None
    capability: Capabilities | None = None
    active_tasks: list[ActiveTask] | msgspec.UnsetType = msgspec.UNSET
    """Everything that the worker holds; absent: it does not say."""
    sent_at: str | float | int | None = None
    draining: bool = False


class ReadyForWork(msgspec.Struct, kw_only=True, omit_defaults=True):
    worker_id: str = ""
    slots: Slots | None = None
    reason: str = ""


class JobAccepted(msgspec.Struct, kw_only=True, omit_defaults=True):
    task_id: str
    attempt: str = ""


class JobResult(msgspec.Struct, kw_only=True, omit_defaults=True):
    task_id: str
    attempt: str = ""
    state: str
    exit_code: ExitCode | None = None
    error: str = ""
    fault: str = ""
    artifact_id: str = ""
    result: str = ""
    """A function's value, base64."""
    result_id: str = ""
    """The same as a blob, where it is too large for a message."""
    metrics: dict[str, float] = {}
    """The last value of each number that the task told about itself."""
    checkpoint_id: str = ""
    run_s: Seconds = 0.0
    """How long its processes ran; 0: not known, and so with the peaks."""
    peak_memory_mib: Mib = 0
    peak_vram_mib: Mib = 0
    lacked: str = ""
    """`vram` or `memory`: what it ran out of and died."""


class ServiceHealth(msgspec.Struct, kw_only=True, omit_defaults=True):
    task_id: str
    healthy: bool
    message: str = ""
    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 0
    """Where it listens on its machine."""


class MetricsRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    pass


class MetricsResponse(msgspec.Struct, kw_only=True, omit_defaults=True):
    text: str


class LogRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    task_id: str
    attempt: str
    offset: int = 0
    """Where the hub's copy ends."""
    follow: bool = False
    reached: int = 0
    """How far into the task's output that is, where the copy lacks parts; 0: it is the same."""


class Peer(msgspec.Struct, kw_only=True):
    rank: int
    host: str


class Follower(msgspec.Struct, array_like=True):
    """One that begins when the one before it in its line has ended, and is assigned as that one in all but this."""

    task_id: str
    attempt: str
    index: int | None = None


class JobAssign(msgspec.Struct, kw_only=True, omit_defaults=True):
    spec: dict[str, Any] | msgspec.Raw
    attempt: str
    remaining_time: int
    """Nanoseconds; 0: without end."""
    devices: list[int] = []
    whole: bool | None = None
    """Whether the devices are its own, not a share of one; None: as the spec's gpu_count says."""
    index: int | None = None
    rank: int | None = None
    """Of a gang's member; `peers` are all of them, in order of rank."""
    peers: list[Peer] = []
    master_port: int = 0
    checkpoint: str = ""
    """The blob to begin from, and the worker that brought it: that one has the files already."""
    checkpoint_by: str = ""
    after: list[str] = []
    """Attempts there whose end it waits for: it was sent ahead, and holds nothing until then."""
    line: list[Follower] = []
    """Those that were sent ahead to come after it, one after the other."""
    secrets: dict[str, str] = {}
    """What is in those that the spec names, in base64, by name. They are for this attempt, and kept nowhere."""


class JobHint(JobAssign, kw_only=True, omit_defaults=True):
    """This assignment is being written down: in a moment it comes, or it does not. Nothing of it is begun before."""


class PrewarmHint(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Fetch this snapshot now: the task is likely to come to you."""

    task_id: str
    snapshot_id: str
    snapshot_sha: str = ""


class RelayRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Somebody calls a service that runs there: open `GET /v1/ws/relay/{relay_id}` and join it to the task's port. With
    `port`, open `GET /tunnel/{relay_id}` there instead: on that port of the hub's machine, or below `url`. Why that
    cannot be is told by the close of the former. With `beside`, join it to a new process beside the task's own."""

    relay_id: str
    task_id: str
    attempt: str = ""
    port: int = 0
    url: str = ""
    beside: bool = False


class NoWork(msgspec.Struct, kw_only=True, omit_defaults=True):
    pass


class JobCancel(msgspec.Struct, kw_only=True):
    task_id: str
    attempt: str = ""
    reason: str = ""
    grace_seconds: float = 10.0
    unstarted: bool | msgspec.UnsetType = msgspec.UNSET
    """Only if it was sent ahead and has not been started: then it is `returned`, and nothing is spent."""


class WorkerInfo(msgspec.Struct, kw_only=True):
    """A worker in one line."""

    id: str
    backend: str
    gpu_count: int
    vram_gb: float
    cpu_count: int
    status: str
    active_jobs: int
    total_slots: int
    last_heartbeat: str | None = None


class JobSummary(msgspec.Struct, kw_only=True):
    """What a worker holds, one line each."""

    task_id: str
    job_name: str
    status: str
    started_at: str | None = None


class WorkerListRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    backend: str = ""


class WorkerListResponse(msgspec.Struct, kw_only=True):
    workers: list[WorkerInfo]


class WorkerShowRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    worker_id: Id


class WorkerShowResponse(msgspec.Struct, kw_only=True):
    worker: WorkerInfo
    jobs: list[JobSummary]


class Ack(msgspec.Struct, kw_only=True, omit_defaults=True):
    of: str = ""
    task_id: str = ""
    attempt: str = ""
    attempts: list[str] = []
    """Of `job_result`: those of several, in the place of one."""
    sent_at: str | float | int | None = None
    token: str = ""
    hubs: list[str] = []
    """To a registration: where else this fleet's hubs are reached, of which another may lead one day."""


Message = (
    Register
    | Heartbeat
    | ReadyForWork
    | JobAccepted
    | JobResult
    | ServiceHealth
    | MetricsRequest
    | MetricsResponse
    | LogRequest
    | PrewarmHint
    | RelayRequest
    | JobAssign
    | JobHint
    | NoWork
    | JobCancel
    | WorkerListRequest
    | WorkerListResponse
    | WorkerShowRequest
    | WorkerShowResponse
    | Ack
)

TYPES: dict[str, type[Message]] = {
    "register": Register,
    "heartbeat": Heartbeat,
    "ready_for_work": ReadyForWork,
    "job_accepted": JobAccepted,
    "job_result": JobResult,
    "service_health": ServiceHealth,
    "metrics_request": MetricsRequest,
    "metrics_response": MetricsResponse,
    "log_request": LogRequest,
    "prewarm_hint": PrewarmHint,
    "relay_request": RelayRequest,
    "job_assign": JobAssign,
    "job_hint": JobHint,
    "no_work": NoWork,
    "job_cancel": JobCancel,
    "worker_list_request": WorkerListRequest,
    "worker_list_response": WorkerListResponse,
    "worker_show_request": WorkerShowRequest,
    "worker_show_response": WorkerShowResponse,
    "ack": Ack,
}
NAMES: dict[type[Message], str] = {kind: name for name, kind in TYPES.items()}
FROM_WORKER = frozenset(
    {"register", "heartbeat", "ready_for_work", "job_accepted", "job_result", "service_health", "metrics_request"}
)
FROM_CLI = frozenset({"worker_list_request", "worker_show_request"})
TO_CLI = frozenset({"worker_list_response", "worker_show_response", "ack"})
FROM_HUB = frozenset(
    {
        "metrics_response",
        "log_request",
        "prewarm_hint",
        "relay_request",
        "job_assign",
        "job_hint",
        "no_work",
        "job_cancel",
        "ack",
    }
)


class _Envelope(msgspec.Struct):
    type: str
    payload: msgspec.Raw = msgspec.Raw(b"{}")
    error: str = ""


class Frame(msgspec.Struct):
    """One decoded message, and the error text that came with it."""

    type: str
    message: Message
    error: str = ""


_envelopes = msgspec.json.Decoder(_Envelope | list[_Envelope])
_payloads = {name: msgspec.json.Decoder(kind) for name, kind in TYPES.items()}


def told_metrics(given: dict[str, float]) -> dict[str, float]:
    """As many as are worth keeping; what is no number cannot be compared."""
    finite = [(name, value) for name, value in given.items() if math.isfinite(value) and len(name) <= MAX_METRIC_NAME]
    return dict(finite[:MAX_METRICS])


def decode(data: str | bytes, allowed: frozenset[str]) -> list[Frame | MalformedFrame]:
    """The messages of one frame; in place of each that cannot be read, what is wrong with it."""
    try:
        found = _envelopes.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return [MalformedFrame(f"frame: {error}")]
    return [_open(envelope, allowed) for envelope in (found if isinstance(found, list) else [found])]


def _open(envelope: _Envelope, allowed: frozenset[str]) -> Frame | MalformedFrame:
    if envelope.type not in allowed:
        return MalformedFrame(f"type: {envelope.type[:64]!r} is not a message that this side takes")
    payload = bytes(envelope.payload)
    if payload == b"null":
        payload = b"{}"
    try:
        message = nulls.decode(_payloads[envelope.type], payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return MalformedFrame(f"{envelope.type}: {error}")
    return Frame(envelope.type, message, envelope.error)


def encode(message: Message, error: str = "", *, kind: type[Message] | None = None) -> bytes:
    """`kind`: as a message of another kind that has the same fields."""
    body: dict[str, Any] = {"type": NAMES[kind or type(message)], "payload": message}
    if error:
        body["error"] = error
    return _encode(body)


def packed(frames: list[bytes]) -> list[bytes]:
    """In frames of BATCH_BYTES, or of one message that is longer, for a peer that takes batches."""
    groups: list[list[bytes]] = []
    size = BATCH_BYTES
    for frame in frames:
        if size + len(frame) > BATCH_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(frame)
        size += len(frame) + 1
    return [group[0] if len(group) == 1 else b"[" + b",".join(group) + b"]" for group in groups]
