"""What the hub answers, in the form that its description tells it: for clients that are made from that.

The documents themselves are made in hub/documents.py and beside the handlers; tests/protocol/test_description.py
holds them to these.
"""

from typing import Any, Literal

import msgspec

from ostler.domain.job import JobSpec

State = Literal["pending", "assigned", "running", "orphaned", "succeeded", "failed", "cancelled", "unschedulable"]
Time = str
"""RFC 3339, in UTC."""
Numbers = dict[str, float]
Table = dict[str, Any]


class Submitted(msgspec.Struct):
    id: str
    state: State
    notes: list[str]
    """What the hub changed in the spec, one sentence each."""


class SubmittedMany(msgspec.Struct):
    ids: list[str]


class Attempt(msgspec.Struct):
    attempt: str
    worker: str
    state: str
    reason: str
    devices: list[int]
    why: str
    started_at: Time | None
    finished_at: Time | None
    run_s: float | None
    peak_memory_mib: int | None
    peak_vram_mib: int | None


class Job(msgspec.Struct):
    """A job; with `index`, one task of an array."""

    id: str
    name: str
    state: State
    status: str
    reason: str
    exit_code: int | None
    worker: str | None
    user_id: str
    attempt: str | None
    submitted_at: Time | None
    started_at: Time | None
    finished_at: Time | None
    artifact_id: str | None
    metrics: Numbers
    spec: JobSpec
    priority: int = 0
    index: int = 0
    attempts: list[Attempt] = []
    counts: dict[str, int] = {}
    """Of an array or a gang: how many of its tasks are in each state."""
    health: str | None = None
    progress: Any = None
    expected: Table | None = None


class Jobs(msgspec.Struct):
    jobs: list[Job]
    next: str | None


class Task(msgspec.Struct):
    """With `ended=1` without where and when it ran."""

    id: str
    index: int
    state: State
    exit_code: int | None
    reason: str
    worker: str | None = None
    attempt: str | None = None
    started_at: Time | None = None
    finished_at: Time | None = None
    value: str | None = None
    """With `ended=1`, in base64: what a function's process wrote, where that is small."""


class Tasks(msgspec.Struct):
    tasks: list[Task]
    next: int | None


class Event(msgspec.Struct):
    seq: int
    at: Time
    kind: str
    subject: str
    state: str = ""
    reason: str | None = None
    user: str = ""
    name: str = ""
    task: str | None = None
    attempt: str | None = None
    worker: str | None = None
    health: str = ""


class Events(msgspec.Struct):
    events: list[Event]
    """Oldest first; of a task of an array, its own."""
    next: int | None
    """More has happened: what comes next is asked for with this as `after`."""
    older: bool
    """More has happened before: only the `newest` ones were asked for."""


class Results(msgspec.Struct):
    results: dict[str, str]
    """By index, in base64: what the functions' processes wrote."""
    left_out: list[int]
    """Those that were too much for one answer: to be asked for again, or each by itself."""


class Holder(msgspec.Struct):
    task_id: str
    vram_gb: float | None


class Device(msgspec.Struct):
    index: int
    uuid: str
    name: str
    vram_gb: float
    vram_free_gb: float
    held_by: list[Holder]


class Free(msgspec.Struct):
    gpus: int
    cores: float
    memory_gb: float


class Held(msgspec.Struct):
    task_id: str
    attempt: str
    state: str


class Worker(msgspec.Struct):
    id: str
    backend: str
    gpu_count: int
    vram_gb: float
    cpu_count: float
    memory_gb: float
    status: Literal["ready", "busy", "offline"]
    active_jobs: int
    total_slots: int
    last_heartbeat: Time | None
    last_contact: Time | None
    draining: bool
    cooling: bool
    capabilities: Table | None
    labels: dict[str, str]
    free: Free
    devices: list[Device]
    tasks: list[Held]
    jobs: list[Table] = []
    hostname: str = ""
    capability: Table | None = None


class Workers(msgspec.Struct):
    workers: list[Worker]
    next: str | None


class Amount(msgspec.Struct):
    total: float
    held: float


class Status(msgspec.Struct):
    jobs: dict[str, int]
    ended: dict[str, int]
    oldest_pending: str | None
    workers: dict[str, int]
    gpus: Amount
    cores: Amount
    memory_gb: Amount
    hub: Table
    hubs: list[Table]
    retention: Table
    disk: list[Table]
    manifest: Table | None
    sweeps: list[Table]


class Health(msgspec.Struct):
    status: str
    version: str
    role: str
    term: int = 0


class Me(msgspec.Struct):
    role: str
    user: str


class Token(msgspec.Struct):
    id: str
    role: str
    user: str
    created_at: Time | None
    expires_at: Time | None
    revoked_at: Time | None


class Tokens(msgspec.Struct):
    tokens: list[Token]


class CreatedToken(msgspec.Struct):
    id: str
    role: str
    user: str
    created_at: Time | None
    expires_at: Time | None
    revoked_at: Time | None
    token: str
    """The secret: it is told once."""


class Artifact(msgspec.Struct):
    id: str
    size: int
    model: str
    mode: str
    created_at: Time | None
    metrics: Numbers
    path: str | None
    compressed: bool
    jobs: list[Table]


class Artifacts(msgspec.Struct):
    artifacts: list[Artifact]
    next: str | None


class Between(msgspec.Struct):
    """In four of five cases it is between the first and the last; None: later than can be foreseen."""

    low: Time | None
    likely: Time | None
    high: Time | None


class Expected(msgspec.Struct, kw_only=True):
    as_of: Time
    runs: int
    """How often the future was tried out."""
    start: Between | None = None
    end: Between | None = None
    later_than: Time | None = None
    """It was not reached in the time for looking ahead."""
    never: bool = False


class ExpectedInWords(Expected, kw_only=True):
    words: str | None = None
    summary: str = ""


class Estimate(msgspec.Struct):
    id: str
    state: State
    words: str | None
    as_of: Time | None = None
    runs: int = 0
    start: Between | None = None
    end: Between | None = None
    later_than: Time | None = None
    never: bool = False


class Moved(msgspec.Struct):
    id: str
    by_s: int | None
    """None where it would never begin on one side."""
    now: Time | None
    then: Time | None
    """None: never."""


class ManyMoved(msgspec.Struct):
    count: int
    jobs: list[Moved]
    """Those that move most."""


class Compared(msgspec.Struct):
    job: str | None
    now: ExpectedInWords | None
    then: ExpectedInWords | None
    earlier: ManyMoved
    later: ManyMoved
    compared: int


class Place(msgspec.Struct):
    place: int
    id: str
    user: str
    priority: int
    tier: str
    waiting_since: Time
    waited_s: float
    tasks: int
    gpus: int
    cores: float
    memory_gb: float
    nodes: int
    name: str
    expected: Expected | None
    words: str | None


class Used(msgspec.Struct):
    user: str
    gpu_seconds: float
    """As they weigh today: the longer ago, the less."""
    gpus_held: int


class Queue(msgspec.Struct):
    waiting: int
    queue: list[Place]
    users: list[Used]
    next: str | None


class TimelineDevice(msgspec.Struct):
    index: int
    name: str


class TimelineMachine(msgspec.Struct):
    id: str
    cores: float
    devices: list[TimelineDevice]


class Block(msgspec.Struct):
    """One attempt, where and when it ran; of others' only that."""

    attempt: str
    task_id: str
    job_id: str
    worker: str
    devices: list[int]
    cores: float
    state: str
    reason: str
    started_at: Time | None
    finished_at: Time | None
    kind: Literal["job", "model", "service"]
    name: str
    user: str


class Away(msgspec.Struct):
    worker: str
    state: str
    reason: str
    since: Time
    until: Time | None


class Timeline(msgspec.Struct):
    since: Time
    until: Time
    now: Time
    machines: list[TimelineMachine]
    blocks: list[Block]
    away: list[Away]
    cut: bool
    """There is more than was asked for."""


class AuditRow(msgspec.Struct):
    """As it was written: its hash is made of this."""

    seq: int
    at: float
    actor: str
    user: str
    role: str
    source: str
    action: str
    object: str
    outcome: str
    detail: str
    hash: str


class Audit(msgspec.Struct):
    rows: list[AuditRow]
    next: str | None
    head: str | None
    anchor: str | None


class Secret(msgspec.Struct):
    name: str
    user: str
    fleet: bool
    at: Time | None
    by: str


class Secrets(msgspec.Struct):
    secrets: list[Secret]


class NoSecret(msgspec.Struct):
    name: str
    user: str
    fleet: bool


class Best(msgspec.Struct):
    job_id: str
    name: str
    value: float
    hyper: Table


class Sweep(msgspec.Struct):
    name: str
    model: str
    mode: str
    metric: str
    goal: str
    counts: dict[str, int]
    total: int
    best: Best | None


class Sweeps(msgspec.Struct):
    sweeps: list[Sweep]
    next: str | None


class Run(msgspec.Struct):
    job_id: str
    name: str
    hyper: Table
    status: str
    reason: str
    worker: str | None
    metrics: Numbers
    value: float | None


class SweepOfRuns(Sweep):
    jobs: list[Run]


class Model(msgspec.Struct):
    name: str
    aliases: list[str]
    state: str
    worker: str | None
    job_id: str | None
    in_flight: int
    queued: int
    waits_for: str | None
    served: int
    idle_s: float | None
    load_s: float | None
    loads: int
    stops: int
    gpus: int
    vram_gb: float
    memory_gb: float
    learnt: list[str]
    """Which of its sizes was seen, and is not as configured."""
    pinned: bool
    error: str | None
    instances: list[Table]


class Models(msgspec.Struct):
    models: list[Model]
    next: str | None
    config: Table
