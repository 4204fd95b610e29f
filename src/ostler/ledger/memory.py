"""The ledger in plain dicts, for the simulator: the object itself is what survives a crash of the hub."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from itertools import islice
from math import inf
from typing import TypeVar, get_origin, get_type_hints

import msgspec

from ostler.domain.audit import AuditRecord
from ostler.domain.errors import LedgerError
from ostler.domain.records import (
    AHEAD,
    ArtifactRecord,
    AttemptRecord,
    DepartedRecord,
    EndedTask,
    FeedRecord,
    JobProgress,
    JobRecord,
    JobTerms,
    KeptRecord,
    ManifestRecord,
    NeedRecord,
    ReceiptRecord,
    TaskRecord,
    TokenRecord,
    UsageRecord,
    WorkerRecord,
    bring_up,
    sent_ahead,
)
from ostler.domain.states import LIVE, SUCCEEDED, TERMINAL
from ostler.ledger.base import KINDS, TALLY, Changes, JobView, Old, Output, Snapshot, unknown_states

T = TypeVar("T", bound=msgspec.Struct)

_MUTABLE: dict[type, list[str]] = {
    kind: [field for field, hint in get_type_hints(kind).items() if get_origin(hint) in (list, dict)]
    for kind in (
        JobRecord,
        JobProgress,
        TaskRecord,
        AttemptRecord,
        WorkerRecord,
        FeedRecord,
        TokenRecord,
        UsageRecord,
        ReceiptRecord,
        JobTerms,
        ArtifactRecord,
        ManifestRecord,
        DepartedRecord,
        AuditRecord,
    )
}
"""The fields of each kind of record that hold a list or a dict."""


class MemoryLedger:
    """Records are copied on their way in and out: what a caller does to its own changes nothing here."""

    is_at_hand = True

    def __init__(self) -> None:
        self._jobs: dict[str, JobRecord] = {}
        self._job_seqs: set[int] = set()
        self._tasks: dict[str, TaskRecord] = {}
        self._attempts: dict[str, AttemptRecord] = {}
        self._workers: dict[str, WorkerRecord] = {}
        self._feed: dict[int, FeedRecord] = {}
        self._tokens: dict[str, TokenRecord] = {}
        self._receipts: dict[str, ReceiptRecord] = {}
        self._usage: dict[str, UsageRecord] = {}
        self._artifacts: dict[tuple[str, str], tuple[int, ArtifactRecord]] = {}
        self._manifest: ManifestRecord | None = None
        self._kept: dict[tuple[str, str], bytes] = {}
        self._needs: set[NeedRecord] = set()
        self._departed: dict[str, DepartedRecord] = {}
        self._audit: dict[int, AuditRecord] = {}

    def commit(self, changes: Changes) -> None:
        self._refuse_contradictions(changes)
        for job in changes.new_jobs:
            self._jobs[job.id] = _own(job)
            self._job_seqs.add(job.seq)
        for terms in changes.changed_terms:
            self._change(terms)
        for progress in changes.progress:
            self._change(progress)
        self._tasks.update((task.id, _own(task)) for task in changes.tasks)
        self._attempts.update((attempt.attempt, _own(attempt)) for attempt in changes.attempts)
        self._workers.update((worker.id, _own(worker)) for worker in changes.workers)
        self._feed.update((line.seq, _own(line)) for line in changes.feed)
        self._tokens.update((token.id, _own(token)) for token in changes.tokens)
        self._receipts.update((receipt.key, _own(receipt)) for receipt in changes.receipts)
        self._usage.update((used.user, _own(used)) for used in changes.usage)
        for artifact in changes.artifacts:
            self._keep_artifact(artifact)
        if gone := set(changes.gone_artifacts) - (self.wanted_artifacts() if changes.gone_artifacts else set()):
            self._artifacts = {key: kept for key, kept in self._artifacts.items() if key[0] not in gone}
        for manifest in changes.manifest:
            self._manifest = _own(manifest)
        for kept in changes.kept:
            self._keep(kept)
        self._needs.update(changes.needs)
        self._departed.update((one.id, _own(one)) for one in changes.departed)
        self._audit.update((row.seq, _own(row)) for row in changes.audit)
        self._remove(changes)

    def _remove(self, changes: Changes) -> None:
        tasks = set(changes.gone_tasks)
        self._attempts = _without(self._attempts, lambda one: one.task_id in tasks) if tasks else self._attempts
        for job_id in changes.gone_jobs:
            gone = self._jobs.pop(job_id, None)
            if gone is not None:
                self._job_seqs.discard(gone.seq)
        if jobs := set(changes.gone_jobs):
            self._needs = {need for need in self._needs if need.job_id not in jobs}
        for task_id in tasks:
            self._tasks.pop(task_id, None)
        for key in changes.gone_outputs:
            self._artifacts.pop((key.id, key.task_id), None)
            task = self._tasks.get(key.task_id)
            if task is not None and task.artifact_id == key.id:
                task.artifact_id = ""
        for seq in changes.gone_feed:
            self._feed.pop(seq, None)
        for receipt in changes.gone_receipts:
            self._receipts.pop(receipt, None)
        if changes.gone_audit:
            self._audit = {seq: row for seq, row in self._audit.items() if seq > changes.gone_audit}

    def _refuse_contradictions(self, changes: Changes) -> None:
        """Before anything is changed: what can fail here fails whole."""
        new = {job.id for job in changes.new_jobs}
        seqs = {job.seq for job in changes.new_jobs}
        if len(new) < len(changes.new_jobs) or not new.isdisjoint(self._jobs):
            raise LedgerError("a job id is there already")
        if len(seqs) < len(changes.new_jobs) or not seqs.isdisjoint(self._job_seqs):
            raise LedgerError("a job seq is there already")
        changed: list[JobProgress | JobTerms] = [*changes.progress, *changes.changed_terms]
        if any(one.id not in new and one.id not in self._jobs for one in changed):
            raise LedgerError("a change of a job that is not there")
        if _moved(self._tasks, changes.tasks, lambda task: task.id, lambda task: (task.job_id, task.index)):
            raise LedgerError("a task changed its owner")
        if _moved(self._attempts, changes.attempts, lambda one: one.attempt, lambda one: (one.task_id, one.job_id)):
            raise LedgerError("an attempt changed its owner")
        if any(manifest.id != 1 for manifest in changes.manifest):
            raise LedgerError("a second manifest")
        audited = {row.seq for row in changes.audit}
        if len(audited) < len(changes.audit) or not audited.isdisjoint(self._audit):
            raise LedgerError("a row of the audit is there already")
        if unknown_states(changes):
            raise LedgerError("a job in a state that is none")

    def _change(self, part: JobProgress | JobTerms) -> None:
        bring_up(self._jobs[part.id], _own(part))

    def _keep_artifact(self, artifact: ArtifactRecord) -> None:
        """In order of their numbers, because one that is written again keeps its place in a dict."""
        key = (artifact.id, artifact.task_id)
        last = next(reversed(self._artifacts.values()), None)
        number, _ = self._artifacts.get(key) or (last[0] + 1 if last else 1, artifact)
        self._artifacts[key] = (number, _own(artifact))

    def _keep(self, kept: KeptRecord) -> None:
        if kept.value is None:
            self._kept.pop((kept.scope, kept.key), None)
        else:
            self._kept[kept.scope, kept.key] = kept.value

    def live_jobs(self) -> Iterator[JobRecord]:
        busy = {attempt.job_id for attempt in self._attempts.values() if attempt.held}
        for job in sorted(self._jobs.values(), key=_seq):
            if job.state in LIVE or job.id in busy:
                yield msgspec.structs.replace(_own(job), spec=b"")

    def load(self, *, with_jobs: bool = True) -> Snapshot:
        held = [attempt for attempt in self._attempts.values() if attempt.held]
        busy_tasks = {attempt.task_id for attempt in held}
        jobs = list(self.live_jobs())
        kept = {job.id for job in jobs}
        return Snapshot(
            jobs=jobs if with_jobs else [],
            tasks=[
                _own(task)
                for task in sorted(self._tasks.values(), key=lambda task: (task.job_id, task.index, task.id))
                if task.job_id in kept and (task.state in LIVE or task.id in busy_tasks)
            ],
            attempts=[_own(attempt) for attempt in held],
            ahead=[sent_ahead(value) for (scope, _), value in sorted(self._kept.items()) if scope.startswith(AHEAD)],
            workers=[_own(worker) for worker in sorted(self._workers.values(), key=lambda worker: worker.id)],
            tokens=[_own(token) for token in self._tokens.values() if token.revoked_at is None],
            manifest=self._manifest and _own(self._manifest),
            usage=[_own(used) for used in sorted(self._usage.values(), key=lambda used: used.user)],
            learnt=self.kept(KINDS),
            tally=self.kept(TALLY),
            last_job_seq=max(self._job_seqs, default=0),
            last_feed_seq=max(self._feed, default=0),
        )

    def jobs(self, ids: Collection[str]) -> dict[str, JobRecord]:
        return {id_: _own(self._jobs[id_]) for id_ in ids if id_ in self._jobs}

    def specs(self, ids: Collection[str]) -> dict[str, bytes]:
        return {id_: self._jobs[id_].spec for id_ in ids if id_ in self._jobs}

    def tasks(self, ids: Collection[str]) -> dict[str, TaskRecord]:
        return {id_: _own(self._tasks[id_]) for id_ in ids if id_ in self._tasks}

    def tasks_of(self, job_id: str, *, after: int = -1, limit: int = 1000) -> list[TaskRecord]:
        found = [task for task in self._tasks.values() if task.job_id == job_id and task.index > after]
        return _page(sorted(found, key=lambda task: (task.index, task.id)), limit)

    def ended_tasks_of(self, job_id: str, *, after: int = -1, limit: int = 1000) -> list[EndedTask]:
        every = self.tasks_of(job_id, after=after, limit=len(self._tasks))
        ended = [one for one in every if one.state in TERMINAL][: max(limit, 0)]
        return [EndedTask(one.id, one.index, one.state, one.exit_code, one.reason, one.result) for one in ended]

    def attempts_of(self, task_id: str) -> list[AttemptRecord]:
        return [_own(attempt) for attempt in self._attempts.values() if attempt.task_id == task_id]

    def attempts_ended(self, *, after: float, before: float, limit: int = 1000) -> list[AttemptRecord]:
        found = [
            (one.finished_at, number, one)
            for number, one in enumerate(self._attempts.values())
            if one.finished_at is not None and one.finished_at > after and one.assigned_at <= before
        ]
        return [_own(one) for _, _, one in sorted(found, key=lambda row: row[:2], reverse=True)[: max(limit, 0)]]

    def worker_lines(self, limit: int = 1000) -> list[FeedRecord]:
        found = sorted((line for line in self._feed.values() if line.kind == "worker"), key=_seq, reverse=True)
        return [_own(line) for line in found[: max(limit, 0)]]

    def list_jobs(
        self, *, states: Sequence[str] = (), user: str = "", name: str = "", before: int | None = None, limit: int = 100
    ) -> list[JobView]:
        found = (
            job
            for job in sorted(self._jobs.values(), key=_seq, reverse=True)
            if (not states or job.state in states)
            and (not user or job.user == user)
            and (not name or job.name == name)
            and (before is None or job.seq < before)
        )
        return [JobView(job, self._single_task(job)) for job in _page(found, limit)]

    def _single_task(self, job: JobRecord) -> TaskRecord | None:
        task = self._tasks.get(job.id) if job.size == 0 else None
        return task and _own(task)

    def matching_ids(self, prefix: str, limit: int = 2, *, user: str = "") -> list[str]:
        found = [job.id for job in self._jobs.values() if job.id.startswith(prefix) and user in ("", job.user)]
        return sorted(found)[: max(limit, 0)]

    def newest_named(self, name: str, *, user: str = "") -> str | None:
        named = [job for job in self._jobs.values() if name and job.name == name and user in ("", job.user)]
        return max(named, key=_seq).id if named else None

    def feed(
        self, *, after: int, subject: str = "", task: str = "", newest: bool = False, limit: int = 1000
    ) -> list[FeedRecord]:
        found = [line for line in self._feed.values() if line.seq > after and subject in ("", line.subject)]
        found = [line for line in found if not (subject and task) or line.body.get("task") == task]
        page = _page(sorted(found, key=_seq, reverse=newest), limit)
        return page[::-1] if newest else page

    def manifest(self) -> ManifestRecord | None:
        return self._manifest and _own(self._manifest)

    def manifest_jobs(self, *, name: str = "", sweep: str = "", states: Sequence[str] = ()) -> list[JobView]:
        found = [
            job
            for job in sorted(self._jobs.values(), key=_seq)
            if job.origin
            and name in ("", job.name)
            and sweep in ("", job.sweep)
            and (not states or job.state in states)
        ]
        return [JobView(_own(job), self._single_task(job)) for job in found]

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
        found = (
            (number, _own(one))
            for number, one in reversed(self._artifacts.values())
            if (not ids or one.id in ids)
            and job_id in ("", one.job_id)
            and model in ("", one.model)
            and user in ("", one.user)
            and (before is None or number < before)
        )
        return list(islice(found, max(limit, 0)))

    def wanted_artifacts(self) -> set[str]:
        return {task.artifact_id for task in self._tasks.values() if task.artifact_id and task.state == SUCCEEDED}

    def receipt(self, key: str) -> ReceiptRecord | None:
        receipt = self._receipts.get(key)
        return receipt and _own(receipt)

    def kept(self, scope: str) -> dict[str, bytes]:
        return {key: value for (of, key), value in sorted(self._kept.items()) if of == scope}

    def ended_jobs(self, *, before: float, after: tuple[float, int] = (-inf, 0), limit: int = 100) -> list[Old]:
        ended = [(job.finished_at, job.seq, job) for job in self._jobs.values() if job.state in TERMINAL]
        found = sorted((at, seq, job) for at, seq, job in ended if at is not None and after < (at, seq) and at < before)
        return [Old(_own(job), self._stays(job)) for _, _, job in found[: max(limit, 0)]]

    def _stays(self, job: JobRecord) -> bool:
        of_artifact = any(one.job_id == job.id for _, one in self._artifacts.values())
        return bool(job.origin) or job.seq == max(self._job_seqs) or of_artifact or self._is_depended_on(job)

    def _is_depended_on(self, job: JobRecord) -> bool:
        named = (self._jobs.get(need.job_id) for need in self._needs if need.on_id == job.id)
        return any(one is not None and one.state in LIVE for one in named)

    def departed(self, ids: Collection[str]) -> dict[str, DepartedRecord]:
        return {id_: _own(self._departed[id_]) for id_ in ids if id_ in self._departed}

    def outputs(self, *, before: float, after: int = 0, limit: int = 100) -> list[Output]:
        found = [(number, one) for number, one in self._artifacts.values() if number > after]
        return [Output(number, _own(one), self._output_stays(one, before)) for number, one in found[: max(limit, 0)]]

    def _output_stays(self, artifact: ArtifactRecord, before: float) -> bool:
        job = self._jobs.get(artifact.job_id)
        if job is None:
            return False
        late = job.finished_at is not None and job.finished_at >= before
        return job.state in LIVE or late or self._is_depended_on(job)

    def ends_of(self, attempts: Collection[str]) -> dict[str, float | None]:
        known = [self._attempts[name] for name in attempts if name in self._attempts]
        pairs = [(attempt, self._jobs.get(attempt.job_id)) for attempt in known]
        return {
            attempt.attempt: None if job.state in LIVE or self._is_depended_on(job) else job.finished_at or 0.0
            for attempt, job in pairs
            if job is not None
        }

    def old_feed(self, *, before: float, after: int = 0, limit: int = 1000) -> list[tuple[int, bool]]:
        last = max(self._feed, default=0)
        page = sorted(seq for seq in self._feed if after < seq < last)[: max(limit, 0)]
        return [(seq, self._feed[seq].subject in self._jobs) for seq in page if self._feed[seq].at < before]

    def old_receipts(self, *, before: float, limit: int = 100) -> list[str]:
        old = sorted((one.at, key) for key, one in self._receipts.items() if one.at < before)
        return [key for _, key in old[: max(limit, 0)]]

    def audit(
        self, *, before: int | None = None, since: float = 0.0, actor: str = "", object: str = "", limit: int = 100
    ) -> list[AuditRecord]:
        found = (
            row
            for seq, row in sorted(self._audit.items(), reverse=True)
            if (before is None or seq < before)
            and row.at >= since
            and actor in ("", row.actor, row.user)
            and object in ("", row.object)
        )
        return _page(found, limit)

    def oldest_audit(self, limit: int = 1000) -> list[AuditRecord]:
        return _page((row for _, row in sorted(self._audit.items())), limit)

    def token_list(self) -> list[TokenRecord]:
        return [_own(token) for token in self._tokens.values()]

    def close(self) -> None:
        """Nothing is open."""


def _seq(record: JobRecord | FeedRecord) -> int:
    return record.seq


def _moved(there: Mapping[str, T], new: Iterable[T], key: Callable[[T], str], owner: Callable[[T], object]) -> bool:
    """Whether a record is written under the key of one that belongs elsewhere, there or among the new."""
    owners: dict[str, object] = {}
    for record in new:
        old = there.get(key(record))
        if owners.setdefault(key(record), owner(record if old is None else old)) != owner(record):
            return True
    return False


def _without(there: dict[str, T], is_gone: Callable[[T], bool]) -> dict[str, T]:
    return {key: record for key, record in there.items() if not is_gone(record)}


def _page(records: Iterable[T], limit: int) -> list[T]:
    return [_own(record) for record in islice(records, max(limit, 0))]


def _own(record: T) -> T:
    """A copy, down to the parts that can be changed in place; the rest of a record is immutable."""
    mine = copy(record)
    for field in _MUTABLE[type(record)]:
        setattr(mine, field, copy(getattr(mine, field)))
    return mine
