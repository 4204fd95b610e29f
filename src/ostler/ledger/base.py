"""The seam to durable truth. One writer calls it, from one thread; whoever implements it passes tests/conformance."""

from collections.abc import Collection, Iterator, Sequence
from math import inf
from typing import Protocol

import msgspec

from ostler.domain.audit import AuditRecord
from ostler.domain.records import (
    ArtifactRecord,
    AttemptRecord,
    Changes,
    DepartedRecord,
    EndedTask,
    FeedRecord,
    JobRecord,
    ManifestRecord,
    ReceiptRecord,
    Snapshot,
    TaskRecord,
    TokenRecord,
)
from ostler.domain.states import STATES

__all__ = ["KINDS", "TALLY", "Changes", "JobView", "Ledger", "Old", "Output", "Snapshot", "unknown_states"]


KINDS = "kind"
"""The scope of what a hub has learnt of the kinds of jobs: a part of what it goes on from."""
TALLY = "tally"
"""The scope of how many jobs have ended in each state."""


def unknown_states(changes: Changes) -> bool:
    """A job in such a state would be in no list."""
    states = [job.state for job in changes.new_jobs] + [job.state for job in changes.progress]
    return not set(STATES).issuperset(states)


class JobView(msgspec.Struct):
    """A job with what a list shows of it: the task of a single-task job, where it has a row."""

    job: JobRecord
    task: TaskRecord | None


class Old(msgspec.Struct, frozen=True):
    """A job that has ended, and whether it must stay: for an artifact of its own, for a job that has not ended and
    depends on it, because a manifest brought it, or because it is the newest of all."""

    job: JobRecord
    stays: bool


class Output(msgspec.Struct, frozen=True):
    """An artifact by its number. It must stay for as long as its job, or one that depends on that, has not ended."""

    number: int
    artifact: ArtifactRecord
    stays: bool


class Ledger(Protocol):
    """Rows are keyed by id (jobs, tasks, workers, tokens), attempt, seq (feed), key (receipts), id and task (artifacts)
    or scope and key (kept). A row written again replaces the old one, except a job's: a second insert of a job's id or
    seq is an error, and so are a change of a job that is not there and a job in a state that is none. A task keeps its
    job and index, an attempt its task. An artifact that is both written and gone is gone, but never one that a
    succeeded task points to. A failed commit leaves everything as it was and raises LedgerError. "Oldest first" is the
    order of first writing: the clock may have been set back."""

    @property
    def is_at_hand(self) -> bool:
        """Whether a row is found by its key in no time: in this process, and nobody else is just looking."""
        ...

    def load(self, *, with_jobs: bool = True) -> Snapshot:
        """Without them, they are to be had from `live_jobs`."""
        ...

    def live_jobs(self) -> Iterator[JobRecord]:
        """The jobs of a snapshot, one after the other: a long queue is not in memory twice. Nobody writes meanwhile."""
        ...

    def commit(self, changes: Changes) -> None:
        """One transaction; durable when it returns."""
        ...

    def jobs(self, ids: Collection[str]) -> dict[str, JobRecord]: ...

    def specs(self, ids: Collection[str]) -> dict[str, bytes]: ...

    def tasks(self, ids: Collection[str]) -> dict[str, TaskRecord]: ...

    def tasks_of(self, job_id: str, *, after: int = -1, limit: int = 1000) -> list[TaskRecord]:
        """Rows with index > after, in order of index."""
        ...

    def ended_tasks_of(self, job_id: str, *, after: int = -1, limit: int = 1000) -> list[EndedTask]:
        """The same of those that have ended, and only what tells how."""
        ...

    def attempts_of(self, task_id: str) -> list[AttemptRecord]:
        """Oldest first."""
        ...

    def attempts_ended(self, *, after: float, before: float, limit: int = 1000) -> list[AttemptRecord]:
        """Those that ended after the one time and were assigned by the other; the last to end first."""
        ...

    def worker_lines(self, limit: int = 1000) -> list[FeedRecord]:
        """The feed's lines about workers, newest first."""
        ...

    def list_jobs(
        self, *, states: Sequence[str] = (), user: str = "", name: str = "", before: int | None = None, limit: int = 100
    ) -> list[JobView]:
        """Newest first: seq < before."""
        ...

    def matching_ids(self, prefix: str, limit: int = 2, *, user: str = "") -> list[str]:
        """Job ids that begin with prefix, in order; of one user where it is given."""
        ...

    def newest_named(self, name: str, *, user: str = "") -> str | None: ...

    def feed(
        self, *, after: int, subject: str = "", task: str = "", newest: bool = False, limit: int = 1000
    ) -> list[FeedRecord]:
        """Oldest first: seq > after; of one subject where it is given, and of one of its tasks. The first of them, or
        the newest."""
        ...

    def manifest(self) -> ManifestRecord | None: ...

    def manifest_jobs(self, *, name: str = "", sweep: str = "", states: Sequence[str] = ()) -> list[JobView]:
        """Those that a manifest brought, oldest first; of one name, one sweep or some states where that is given."""
        ...

    def artifacts(
        self,
        *,
        ids: Collection[str] = (),
        job_id: str = "",
        model: str = "",
        user: str = "",
        before: int | None = None,
        limit: int = 100,
    ) -> list[tuple[int, ArtifactRecord]]:
        """Newest first, each with its number: number < before. An empty condition is none."""
        ...

    def wanted_artifacts(self) -> set[str]:
        """Those that a succeeded task points to."""
        ...

    def receipt(self, key: str) -> ReceiptRecord | None: ...

    def kept(self, scope: str) -> dict[str, bytes]:
        """What is kept under a scope, in order of the keys."""
        ...

    def ended_jobs(self, *, before: float, after: tuple[float, int] = (-inf, 0), limit: int = 100) -> list[Old]:
        """Those that ended before this time, in the order in which they did: behind the one of this end and seq."""
        ...

    def departed(self, ids: Collection[str]) -> dict[str, DepartedRecord]: ...

    def outputs(self, *, before: float, after: int = 0, limit: int = 100) -> list[Output]:
        """Artifacts in the order in which they came, number > after; one whose job ended later than this stays."""
        ...

    def ends_of(self, attempts: Collection[str]) -> dict[str, float | None]:
        """When the jobs of these attempts ended; None: one must stay. Attempts that are not known are left out."""
        ...

    def old_feed(self, *, before: float, after: int = 0, limit: int = 1000) -> list[tuple[int, bool]]:
        """Of so many lines, seq > after, those that are older than this; each with whether a job is there that it is
        about."""
        ...

    def old_receipts(self, *, before: float, limit: int = 100) -> list[str]:
        """Keys, oldest first."""
        ...

    def audit(
        self, *, before: int | None = None, since: float = 0.0, actor: str = "", object: str = "", limit: int = 100
    ) -> list[AuditRecord]:
        """Newest first: seq < before. `actor` is a token's id or a user. An empty condition is none."""
        ...

    def oldest_audit(self, limit: int = 1000) -> list[AuditRecord]:
        """Oldest first."""
        ...

    def token_list(self) -> list[TokenRecord]:
        """All, revoked ones too, oldest first."""
        ...

    def close(self) -> None: ...
