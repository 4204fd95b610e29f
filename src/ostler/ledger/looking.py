"""The reads that are alike in every SQL ledger: the statements alone are in its own words."""

from collections.abc import Collection
from typing import ClassVar, NamedTuple

from ostler.domain.audit import AuditRecord
from ostler.domain.records import (
    AttemptRecord,
    EndedTask,
    FeedRecord,
    JobRecord,
    ManifestRecord,
    ReceiptRecord,
    TaskRecord,
    TokenRecord,
)
from ostler.ledger import rows
from ostler.ledger.ageing import Ageing


class Statements(NamedTuple):
    jobs: str
    specs: str
    tasks: str
    tasks_of: str
    ended_tasks_of: str
    attempts_of: str
    attempts_ended: str
    worker_lines: str
    manifest: str
    wanted_artifacts: str
    receipt: str
    kept: str
    tokens: str
    audit: str
    oldest_audit: str


class Looking(Ageing):
    SAYS: ClassVar[Statements]

    def jobs(self, ids: Collection[str]) -> dict[str, JobRecord]:
        return {job.id: job for job in self._all(rows.JOB.record, self.SAYS.jobs, ids)}

    def specs(self, ids: Collection[str]) -> dict[str, bytes]:
        return dict(self._all(rows.pair, self.SAYS.specs, ids))

    def tasks(self, ids: Collection[str]) -> dict[str, TaskRecord]:
        return {task.id: task for task in self._all(rows.TASK.record, self.SAYS.tasks, ids)}

    def tasks_of(self, job_id: str, *, after: int = -1, limit: int = 1000) -> list[TaskRecord]:
        return self._all(rows.TASK.record, self.SAYS.tasks_of, job_id, after, max(limit, 0))

    def ended_tasks_of(self, job_id: str, *, after: int = -1, limit: int = 1000) -> list[EndedTask]:
        return self._all(rows.ended_task, self.SAYS.ended_tasks_of, job_id, after, max(limit, 0))

    def attempts_of(self, task_id: str) -> list[AttemptRecord]:
        return self._all(rows.ATTEMPT.record, self.SAYS.attempts_of, task_id)

    def attempts_ended(self, *, after: float, before: float, limit: int = 1000) -> list[AttemptRecord]:
        return self._all(rows.ATTEMPT.record, self.SAYS.attempts_ended, float(after), float(before), max(limit, 0))

    def worker_lines(self, limit: int = 1000) -> list[FeedRecord]:
        return self._all(rows.FEED.record, self.SAYS.worker_lines, max(limit, 0))

    def manifest(self) -> ManifestRecord | None:
        return next(iter(self._all(rows.MANIFEST.record, self.SAYS.manifest)), None)

    def wanted_artifacts(self) -> set[str]:
        return set(self._all(rows.first, self.SAYS.wanted_artifacts))

    def receipt(self, key: str) -> ReceiptRecord | None:
        return next(iter(self._all(rows.RECEIPT.record, self.SAYS.receipt, key)), None)

    def kept(self, scope: str) -> dict[str, bytes]:
        return dict(self._all(rows.pair, self.SAYS.kept, scope))

    def token_list(self) -> list[TokenRecord]:
        return self._all(rows.TOKEN.record, self.SAYS.tokens)

    def audit(
        self, *, before: int | None = None, since: float = 0.0, actor: str = "", object: str = "", limit: int = 100
    ) -> list[AuditRecord]:
        below = 2**63 - 1 if before is None else before
        return self._all(rows.AUDIT.record, self.SAYS.audit, below, float(since), actor, object, max(limit, 0))

    def oldest_audit(self, limit: int = 1000) -> list[AuditRecord]:
        return self._all(rows.AUDIT.record, self.SAYS.oldest_audit, max(limit, 0))
