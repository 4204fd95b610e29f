"""Tasks, and the attempts to run them."""

from typing import TYPE_CHECKING, Final, Optional

from ostler.core.holding import Holding
from ostler.domain import states

if TYPE_CHECKING:
    from ostler.core.job import Job

PREEMPTED_BY: Final = "preempted by "
LEASES: Final = "lease"
"""The scope under which the ledger keeps the leases of claims that differ from the usual one, by attempt."""


class Task:
    """A task that has been placed at least once, or has ended."""

    __slots__ = (
        "artifact_id",
        "attempt",
        "checkpoint",
        "checkpoint_by",
        "done",
        "exit_code",
        "failures",
        "finished_at",
        "health",
        "holder",
        "id",
        "index",
        "job",
        "losses",
        "metrics",
        "reason",
        "resting",
        "result",
        "result_id",
        "started_at",
        "state",
        "used_s",
        "worker",
    )

    def __init__(self, id: str, job: "Job", index: int) -> None:
        self.id = id
        self.job = job
        self.index = index
        self.state: str = states.PENDING
        self.attempt = ""
        """The current attempt; of a pending task, the last one, which may still come back."""
        self.worker = ""
        self.holder: Attempt | None = None
        """The attempt that holds room for this task. While there is one, nothing else is placed for it."""
        self.done = False
        """A gang's member that has succeeded, while others still run."""
        self.resting = False
        """A service between two starts."""
        self.health = ""
        self.losses = 0
        self.failures = 0
        self.used_s = 0.0
        self.started_at: float | None = None
        self.finished_at: float | None = None
        self.exit_code: int | None = None
        self.reason = ""
        self.artifact_id = ""
        self.metrics: dict[str, float] = {}
        self.checkpoint = ""
        """The blob that its next attempt begins from, and the worker that brought it."""
        self.checkpoint_by = ""
        self.result_id = ""
        self.result: bytes | None = None

    def never_placed(self) -> bool:
        """Nothing was ever spent on it: an assignment that nobody accepted is none."""
        return self.started_at is None and not self.losses and not self.failures and self.holder is None

    def is_displaced(self) -> bool:
        """It waits because its room was another's."""
        return self.state == states.PENDING and self.reason.startswith(PREEMPTED_BY)


class Line:
    """Attempts on one worker, each of which waits for the end of the one before it."""

    __slots__ = ("last", "waiting")

    def __init__(self, last: "Attempt") -> None:
        self.last = last
        self.waiting = 0


class Sent:
    """Attempts that were sent ahead in one batch, as long as nothing has happened to them: the ledger has one entry for
    all of them, and no rows of their tasks."""

    __slots__ = ("assigned_at", "attempts", "high", "job_id", "key", "low", "will", "worker_id")

    def __init__(self, job_id: str, first: "Attempt", index: int, will: Holding) -> None:
        self.job_id = job_id
        self.key = first.id
        self.low = self.high = index
        """No task's index is below or above."""
        self.worker_id = first.worker_id
        self.assigned_at = first.assigned_at
        self.will = will
        """What each of them is to hold."""
        self.attempts: dict[str, tuple[int, str, str]] = {}
        """Its task's index, itself, and the task whose end it was to wait for."""


class Attempt:
    """One authorisation to run a task, for as long as it holds room on a worker."""

    __slots__ = (
        "accept_by",
        "accepted",
        "after",
        "assigned",
        "assigned_at",
        "beaten",
        "charged_s",
        "claimed",
        "counted",
        "finished_at",
        "follower",
        "heir",
        "held",
        "id",
        "lease_s",
        "line",
        "outcome",
        "peak_memory_mib",
        "peak_vram_mib",
        "phase",
        "port",
        "price_s",
        "progress",
        "reason",
        "recalled",
        "run_s",
        "saved",
        "sent",
        "spends",
        "started",
        "started_at",
        "stop_reason",
        "task",
        "task_id",
        "unsent",
        "watched",
        "why",
        "will",
        "worker_id",
    )

    def __init__(
        self,
        *,
        id: str,
        task_id: str,
        task: Task | None,
        worker_id: str,
        held: Holding,
        phase: str,
        assigned: float,
        assigned_at: float = 0.0,
        accepted: bool = False,
        will: Holding | None = None,
        heir: Optional["Job"] = None,
        stop_reason: str = "",
        why: str = "",
    ) -> None:
        self.id = id
        self.task_id = task_id
        self.task = task
        """None: a process that its worker reported and that nobody here knows."""
        self.worker_id = worker_id
        self.held = held
        self.phase = phase
        """assigned, running, stopping (told to end), lapsed (its worker's grace ran out before its end was seen), bound
        (no process: room that a job waits for, kept for it)"""
        self.heir = heir
        """The job that gets its room when it ends."""
        self.after: Attempt | None = None
        """It was sent ahead: it holds nothing, and begins in the room of this one when that has ended."""
        self.follower: Attempt | None = None
        """The one that was sent to come after it."""
        self.line: Line | None = None
        """That it stands in: it waits there, or others wait for it."""
        self.will = will
        """What it is to hold, or held until its follower began; None: what it holds."""
        self.sent: Sent | None = None
        """Those that it is written down with."""
        self.recalled = False
        """Its worker was asked to hand it back if it has not begun."""
        self.unsent = False
        """Its worker has to accept another task first, before this assignment is sent."""
        self.accepted = accepted
        self.accept_by = 0.0
        """Until then at least its acceptance is waited for: its worker has said that it waits in somebody else's
        queue."""
        self.assigned = assigned
        self.started: float | None = None
        self.saved = 0.0
        """When its last checkpoint came."""
        self.assigned_at = assigned_at
        self.started_at: float | None = None
        self.finished_at: float | None = None
        self.watched = False
        """A reminder of the end of its grace is set."""
        self.spends = True
        """What it runs counts against its task's budget."""
        self.counted = will is None
        """It counts as its user's; a lapsed one does not, nor one that is yet to begin."""
        self.stop_reason = stop_reason
        self.outcome = ""
        self.reason = ""
        self.why = why
        self.claimed = False
        """Its worker asked for it and holds no connection: its lease counts from `beaten`, and nothing else does."""
        self.lease_s = 0.0
        """Of a claim, where an operator has set it; 0: the usual one."""
        self.beaten = 0.0
        self.charged_s = 0.0
        """How much of what it ran its user was charged for."""
        self.price_s: float | None = None
        """Of a model's process that is idle: what its room costs whoever wants it. None: it is not to be had."""
        self.port = 0
        """Of a service or a model: where it listens on its machine."""
        self.run_s = 0.0
        """How long its processes ran, as the worker measured it; 0: it did not say, and so with the peaks."""
        self.peak_memory_mib = 0
        self.peak_vram_mib = 0
        self.progress: object = None
        """What its worker last said about how far it is."""

    def is_current(self) -> bool:
        task = self.task
        return task is not None and task.holder is self and task.attempt == self.id and task.state in states.PLACED
