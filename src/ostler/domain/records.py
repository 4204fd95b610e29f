"""What the ledger keeps. Times are wall-clock seconds since the epoch: rows outlive a process's own clock."""

from collections.abc import Iterator
from hashlib import sha256

import msgspec

from ostler.domain import states
from ostler.domain.audit import AuditRecord
from ostler.domain.job import Terms
from ostler.domain.resources import Request


class Dropped(msgspec.Struct, frozen=True):
    """Indices of an array, low ≤ index < high, that ended without ever being placed: they have no rows of their own."""

    low: int
    high: int
    state: str
    reason: str = ""


class JobRecord(msgspec.Struct, kw_only=True):
    """One submitted job. `spec` is its JSON as accepted; it is written once and never changes."""

    id: str
    seq: int
    user: str
    name: str
    spec: bytes
    request: Request
    terms: Terms
    size: int
    """0: a single task whose id is the job's; N: an array of N."""
    state: str
    submitted_at: float
    queued_at: float = 0.0
    """When its wait began, where a requeue began it anew; 0: when it was submitted."""
    finished_at: float | None = None
    waiting: list[tuple[int, int]] = []
    """Half-open ranges of the indices that have no task row yet and wait to be placed."""
    counts: dict[str, int] = {}
    """Tasks by state; only for arrays."""
    dropped: list[Dropped] = []
    reason: str = ""
    blocked_on: list[str] = []
    """Jobs that must still succeed before it may be placed."""
    snapshot: str = ""
    origin: str = ""
    """`manifest`: it is there because the manifest says so."""
    sweep: str = ""
    kind: int = 0
    """What the runs of its like are known by; 0: none."""
    outgrown_mib: int = 0
    """VRAM that one of its tasks had and died of: the next attempt gets more."""


class JobTerms(msgspec.Struct, kw_only=True):
    """The part of a job's row that a changed manifest changes."""

    id: str
    name: str
    spec: bytes
    request: Request
    terms: Terms
    sweep: str = ""
    kind: int = 0


class JobProgress(msgspec.Struct, kw_only=True):
    """The part of a job's row that changes."""

    id: str
    state: str
    queued_at: float = 0.0
    finished_at: float | None = None
    waiting: list[tuple[int, int]] = []
    counts: dict[str, int] = {}
    dropped: list[Dropped] = []
    reason: str = ""
    blocked_on: list[str] = []
    outgrown_mib: int = 0


def bring_up(job: JobRecord, part: JobProgress | JobTerms) -> None:
    """The row as it is once this part has changed."""
    for name in part.__struct_fields__:
        setattr(job, name, getattr(part, name))


class TaskRecord(msgspec.Struct, kw_only=True):
    """One task to which something has happened: it was placed at least once, or ended."""

    id: str
    job_id: str
    index: int
    state: str
    attempt: str = ""
    worker: str = ""
    losses: int = 0
    failures: int = 0
    used_s: float = 0.0
    started_at: float | None = None
    finished_at: float | None = None
    exit_code: int | None = None
    reason: str = ""
    health: str = ""
    """Of a service: `healthy`, or what is wrong with it."""
    artifact_id: str = ""
    """Its packed outputs."""
    metrics: dict[str, float] = {}
    checkpoint: str = ""
    """The blob that its next attempt begins from, and the worker that brought it."""
    checkpoint_by: str = ""
    result_id: str = ""
    """The blob of a function's value that is too large for `result`."""
    result: bytes | None = None


class EndedTask(msgspec.Struct, frozen=True):
    """What whoever waits for the values of many tasks reads of each that has ended."""

    id: str
    index: int
    state: str
    exit_code: int | None
    reason: str
    result: bytes | None = msgspec.field(name="value")
    """Where it is small."""


class AttemptRecord(msgspec.Struct, kw_only=True):
    """One authorisation to run a task. `held` says that its room on the worker is still taken."""

    attempt: str
    task_id: str
    job_id: str
    worker: str
    devices: list[int] = []
    share_mib: int = 0
    cores_milli: int = 0
    memory_mib: int = 0
    pool: str = "batch"
    state: str
    held: bool = True
    holder: bool = True
    """Its task waits for its end; False: the task has gone on without it."""
    accepted: bool = False
    assigned_at: float
    started_at: float | None = None
    finished_at: float | None = None
    stop_reason: str = ""
    reason: str = ""
    why: str = ""
    """Why this worker: the score's own words at the time of the decision."""
    run_s: float = 0.0
    """How long its processes ran, as the worker measured it; 0: it did not say, and so with the peaks."""
    peak_memory_mib: int = 0
    peak_vram_mib: int = 0


class SentAhead(msgspec.Struct, kw_only=True, array_like=True):
    """Attempts of an array that were sent to a worker before there was room for them, and to which nothing has happened
    since. They are kept together, under the job's scope: neither they nor their tasks have rows of their own."""

    job_id: str
    key: str
    low: int
    high: int
    """No task's index is below or above."""
    worker: str
    cores_milli: int
    memory_mib: int
    pool: str
    assigned_at: float
    attempts: list[tuple[int, str, str]]
    """The task's index, the attempt, and the task whose end it waits for."""

    def kept(self) -> "KeptRecord":
        value = msgspec.json.encode(self) if self.attempts else None
        return KeptRecord(scope=ahead_scope(self.job_id), key=self.key, value=value)

    def rows(self) -> Iterator[tuple[TaskRecord, AttemptRecord]]:
        """As they would be."""
        for index, attempt, before in self.attempts:
            yield self.task(index, attempt), self.attempt(index, attempt, before)

    def task(self, index: int, attempt: str) -> TaskRecord:
        return TaskRecord(
            id=f"{self.job_id}.{index}",
            job_id=self.job_id,
            index=index,
            state=states.ASSIGNED,
            attempt=attempt,
            worker=self.worker,
        )

    def attempt(self, index: int, attempt: str, before: str) -> AttemptRecord:
        return AttemptRecord(
            attempt=attempt,
            task_id=f"{self.job_id}.{index}",
            job_id=self.job_id,
            worker=self.worker,
            cores_milli=self.cores_milli,
            memory_mib=self.memory_mib,
            pool=self.pool,
            state=states.ASSIGNED,
            assigned_at=self.assigned_at,
            why=why_ahead(self.worker, before),
        )


AHEAD = "ahead:"


def ahead_scope(job_id: str) -> str:
    return f"{AHEAD}{job_id}"


def why_ahead(worker: str, before: str) -> str:
    return f"sent ahead: it starts on {worker} when {before} ends"


sent_ahead = msgspec.json.Decoder(SentAhead).decode


class SentSpan(msgspec.Struct, kw_only=True, array_like=True):
    """How such an entry begins: what comes behind is not read."""

    job_id: str
    key: str
    low: int
    high: int


sent_span = msgspec.json.Decoder(SentSpan).decode


class WorkerRecord(msgspec.Struct, kw_only=True):
    """A worker that has registered at least once."""

    id: str
    capabilities: bytes
    """As it last sent them, JSON."""
    claims: bytes = b""
    """Of one that holds no connection: the capability of its last claim, JSON; empty: it holds one."""
    draining: bool = False
    registered_at: float
    last_contact: float


class FeedRecord(msgspec.Struct, kw_only=True):
    """One line of what observers see. `subject` is a job's or a worker's id."""

    seq: int
    at: float
    kind: str
    subject: str
    body: dict[str, str | int | float | None]


class TokenRecord(msgspec.Struct, kw_only=True):
    id: str
    role: str
    user: str
    digest: str
    created_at: float
    revoked_at: float | None = None
    expires_at: float | None = None


class ReceiptRecord(msgspec.Struct, kw_only=True):
    """What an Idempotency-Key was answered with."""

    key: str
    digest: str
    ids: list[str]
    at: float


class UsageRecord(msgspec.Struct, kw_only=True):
    """What a user has used lately, as it weighed at that time: half of it has faded a half-life later."""

    user: str
    gpu_seconds: float
    at: float


class ArtifactRecord(msgspec.Struct, kw_only=True):
    """The packed outputs of one task, as its worker handed them over. `id` is the sha256 of the bytes."""

    id: str
    task_id: str
    job_id: str
    name: str = ""
    user: str = ""
    model: str = ""
    mode: str = ""
    attempt: str = ""
    worker: str = ""
    size: int = 0
    created_at: float = 0.0
    metrics: dict[str, float] = {}


class ManifestRecord(msgspec.Struct, kw_only=True):
    """The manifest that the queue follows, as it was applied last."""

    id: int = 1
    text: str
    file: str
    by: str
    applied_at: float


class KeptRecord(msgspec.Struct, kw_only=True):
    """Odds and ends that outlive a restart, by scope and key. None: forget it."""

    scope: str
    key: str
    value: bytes | None


class NeedRecord(msgspec.Struct, kw_only=True, frozen=True):
    """A job that depends on another, as its spec says."""

    job_id: str
    on_id: str


class DepartedRecord(msgspec.Struct, kw_only=True):
    """A job that is gone, and whose id a client chose: it may come again with the same spec, and with no other."""

    id: str
    digest: str
    """Of its spec: `digest_of`."""
    state: str
    """In which it ended."""
    at: float
    """When it was removed."""
    owner: str = ""
    """Whose it was; empty where that was not written down."""


class OutputKey(msgspec.Struct, kw_only=True, frozen=True):
    """An artifact as the output of one task."""

    id: str
    task_id: str


def digest_of(spec: bytes) -> str:
    return sha256(spec).hexdigest()


class Changes(msgspec.Struct, kw_only=True):
    """Everything that one batch of events changed. It becomes durable whole or not at all."""

    new_jobs: list[JobRecord] = []
    changed_terms: list[JobTerms] = []
    progress: list[JobProgress] = []
    tasks: list[TaskRecord] = []
    attempts: list[AttemptRecord] = []
    unwritten: list[str] = []
    """Names of those tasks and attempts that were sent ahead: most have no row before this."""
    workers: list[WorkerRecord] = []
    feed: list[FeedRecord] = []
    tokens: list[TokenRecord] = []
    receipts: list[ReceiptRecord] = []
    usage: list[UsageRecord] = []
    artifacts: list[ArtifactRecord] = []
    gone_artifacts: list[str] = []
    """Ids of those whose bytes are no longer kept; but never those that a succeeded task points to."""
    manifest: list[ManifestRecord] = []
    kept: list[KeptRecord] = []
    needs: list[NeedRecord] = []
    departed: list[DepartedRecord] = []
    gone_jobs: list[str] = []
    """Ids of jobs whose rows go, and what is said of whom they depend on."""
    gone_tasks: list[str] = []
    """Ids of tasks that go with all their attempts."""
    gone_outputs: list[OutputKey] = []
    """Tasks that ended and give up what they left behind."""
    gone_feed: list[int] = []
    gone_receipts: list[str] = []
    audit: list[AuditRecord] = []
    """Each under a number of its own, for ever: a second row with one that is there is an error."""
    gone_audit: int = 0
    """The rows up to this number go."""

    def __bool__(self) -> bool:
        return any(getattr(self, field) for field in self.__struct_fields__)


class Snapshot(msgspec.Struct, kw_only=True):
    """What a hub needs to go on after a restart: all that has not ended, and all that still holds room."""

    jobs: list[JobRecord] = []
    """Jobs that have not ended, or that a held attempt belongs to. Their `spec` is left empty."""
    tasks: list[TaskRecord] = []
    """Of those jobs: the tasks that have not ended, or that a held attempt belongs to."""
    attempts: list[AttemptRecord] = []
    """Those with `held` set."""
    ahead: list[SentAhead] = []
    """Those that have no rows of their own."""
    workers: list[WorkerRecord] = []
    tokens: list[TokenRecord] = []
    """Those not revoked."""
    usage: list[UsageRecord] = []
    manifest: ManifestRecord | None = None
    learnt: dict[str, bytes] = {}
    """What is kept of the kinds of jobs."""
    tally: dict[str, bytes] = {}
    """How many jobs have ended in each state, in digits."""
    last_job_seq: int = 0
    last_feed_seq: int = 0
