"""What has happened. Plain data; the loop stamps each with the time at which it is stepped."""

import msgspec

from ostler.domain.hosts import HostPolicy
from ostler.domain.job import Terms
from ostler.domain.records import (
    ArtifactRecord,
    AttemptRecord,
    DepartedRecord,
    JobRecord,
    ManifestRecord,
    OutputKey,
    ReceiptRecord,
    TaskRecord,
)
from ostler.domain.resources import Request
from ostler.domain.worker import ActiveTask, Capabilities, Slots


class NewJob(msgspec.Struct, kw_only=True):
    id: str
    user: str
    name: str
    spec: bytes
    request: Request
    terms: Terms
    size: int = 0
    depends_on: list[str] = []
    snapshot: str = ""
    origin: str = ""
    sweep: str = ""
    kind: int = 0
    chosen: bool = False
    """The id is the client's: there may be such a job already."""


class JobsSubmitted(msgspec.Struct, kw_only=True):
    """All of them or none. `known` holds those ids that the ledger already has."""

    ref: int
    jobs: list[NewJob]
    known: dict[str, JobRecord] = {}
    departed: dict[str, DepartedRecord] = {}
    """Those that it had once."""
    receipt: ReceiptRecord | None = None
    """The Idempotency-Key with the digest of the body; `answered` is what the ledger already has for that key."""
    answered: ReceiptRecord | None = None


class CancelRequested(msgspec.Struct, kw_only=True):
    """Of a job, or of one task of an array."""

    ref: int
    job_id: str
    index: int | None = None
    reason: str = "cancelled"


class PriorityRequested(msgspec.Struct, kw_only=True):
    """Of a job that has not ended. `row` is as the ledger has it."""

    ref: int
    job_id: str
    priority: int
    row: JobRecord | None = None


class RequeueRequested(msgspec.Struct, kw_only=True):
    """`ended` brings back what has left memory: the job's row, and the rows of its tasks that have ended. `anew` is
    what the manifest says of it by now, if that is otherwise."""

    ref: int
    job_id: str
    index: int | None = None
    ended: JobRecord | None = None
    ended_tasks: list[TaskRecord] = []
    depends_on: list[str] = []
    anew: NewJob | None = None


class DrainRequested(msgspec.Struct, kw_only=True):
    """An operator closes a worker to new work, or opens it again."""

    ref: int
    worker_id: str
    draining: bool


class WorkerRegistered(msgspec.Struct, kw_only=True):
    worker_id: str
    session: int
    capabilities: Capabilities
    active_tasks: list[ActiveTask] = []
    boot_id: str = ""
    ahead: int = 0
    """How many assignments it takes beyond its room."""
    is_plain: bool = False
    """It speaks version 1 of the protocol, without extensions."""
    address: str = ""
    """Where its connection came from: how the other members of a gang reach it."""


class WorkerBeat(msgspec.Struct, kw_only=True):
    worker_id: str
    session: int
    slots: Slots | None = None
    capabilities: Capabilities | None = None
    active_tasks: list[ActiveTask] | None = None
    sent_at: str | float | int | None = None
    draining: bool = False


class WorkerAsked(msgspec.Struct, kw_only=True):
    """A worker wants work; it is always answered."""

    worker_id: str
    session: int
    slots: Slots | None = None


class WorkerLeft(msgspec.Struct, kw_only=True):
    """The socket closed."""

    worker_id: str
    session: int
    reason: str = ""
    """Why the hub closed it, where it did."""


class TaskAccepted(msgspec.Struct, kw_only=True):
    worker_id: str
    session: int
    task_id: str
    attempt: str = ""


class TaskEnded(msgspec.Struct, kw_only=True):
    worker_id: str
    session: int
    task_id: str
    attempt: str = ""
    state: str
    exit_code: int | None = None
    error: str = ""
    fault: str = ""
    artifact_id: str = ""
    artifact: ArtifactRecord | None = None
    """What is known of its packed outputs beforehand, where the hub has them."""
    metrics: dict[str, float] = {}
    checkpoint_id: str = ""
    result_id: str = ""
    result: bytes | None = None
    run_s: float = 0.0
    """How long its processes ran, as the worker measured it; 0: it does not say, and so with the peaks."""
    peak_memory_mib: int = 0
    peak_vram_mib: int = 0
    lacked: str = ""
    """`vram` or `memory`: what it ran out of and died."""


class ServiceReported(msgspec.Struct, kw_only=True):
    """A worker has looked at a service."""

    worker_id: str
    session: int
    task_id: str
    healthy: bool
    message: str = ""
    port: int = 0


class ModelLoad(msgspec.Struct, kw_only=True):
    """The gateway wants a model's process, and those of these jobs gone for it: what they leave is the new one's."""

    ref: int
    job: NewJob
    evict: list[str] = []
    load_s: dict[str, float] = {}
    """How long it took to load where it was loaded before, by worker."""


class ModelPriced(msgspec.Struct, kw_only=True):
    """What the room of a model's process would cost whoever wants it now, in seconds; None: it is not to be had."""

    job_id: str
    price_s: float | None


class ModelUsed(msgspec.Struct, kw_only=True):
    """How many GPU-seconds models have worked for each user, as fair share weighs them."""

    gpu_seconds: dict[str, float]


class ClaimRequested(msgspec.Struct, kw_only=True):
    """A machine that holds no connection asks for one task."""

    ref: int
    worker_id: str
    capabilities: Capabilities
    capability: bytes
    """As it sent them, JSON."""


class ClaimBeat(msgspec.Struct, kw_only=True):
    """It says that it still has what it claimed."""

    ref: int
    worker_id: str
    task_id: str
    attempt: str = ""
    progress: object = None


class ClaimEnded(msgspec.Struct, kw_only=True):
    """It says how that ended. `history` are the task's attempts as the ledger has them: it may have said so before."""

    ref: int
    end: TaskEnded
    history: list[AttemptRecord] = []


class ManifestApplied(msgspec.Struct, kw_only=True):
    """The queue shall follow this manifest. `known` are those of its jobs that the ledger has, and `live` all jobs of
    any manifest that have not ended."""

    ref: int
    jobs: list[NewJob]
    hosts: dict[str, HostPolicy]
    record: ManifestRecord
    known: dict[str, JobRecord] = {}
    live: dict[str, str] = {}
    """Names by id."""
    plan: bool = False
    """Only tell what would change."""
    replace: bool = False
    """Jobs may get other names."""


class Remains(msgspec.Struct, kw_only=True):
    """Rows of a job that has ended."""

    job_id: str
    state: str = ""
    tasks: list[str] = []
    feed: list[int] = []
    more: bytes = b""
    """There are others: what is to be known of them the next time."""
    departed: DepartedRecord | None = None
    """What is remembered of it."""


class OldOutput(msgspec.Struct):
    job_id: str
    key: OutputKey


class PruneRequested(msgspec.Struct, kw_only=True):
    """So much of what is old may go. `page` says how it is found in the ledger; the rest is what was found there."""

    ref: int
    page: object = None
    jobs: list[Remains] = []
    remains: list[Remains] = []
    """Of jobs that are gone already."""
    outputs: list[OldOutput] = []
    feed: list[int] = []
    receipts: list[str] = []


class Keep(msgspec.Struct, kw_only=True):
    """Odds and ends for the ledger, with the batch; nothing answers. None: forget it."""

    scope: str
    key: str
    value: bytes | None


class TimePassed(msgspec.Struct):
    """Deadlines may be due."""


class HubWasAway(msgspec.Struct):
    """The hub itself did not run for this long: silence in that time is nobody else's."""

    seconds: float


Event = (
    JobsSubmitted
    | CancelRequested
    | PriorityRequested
    | RequeueRequested
    | DrainRequested
    | WorkerRegistered
    | WorkerBeat
    | WorkerAsked
    | WorkerLeft
    | TaskAccepted
    | TaskEnded
    | ServiceReported
    | ModelLoad
    | ModelPriced
    | ModelUsed
    | ClaimRequested
    | ClaimBeat
    | ClaimEnded
    | ManifestApplied
    | PruneRequested
    | Keep
    | TimePassed
    | HubWasAway
)
