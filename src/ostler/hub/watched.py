"""The rows of single jobs that somebody waits for, kept up with the ledger: whoever waited for an end is answered
without another look at rows that have only just been written."""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from ostler.domain.records import AttemptRecord, Changes, JobProgress, JobRecord, JobTerms, TaskRecord, bring_up
from ostler.ledger.base import Ledger


class View(msgspec.Struct):
    """One job as the ledger has it."""

    job: JobRecord
    task: TaskRecord | None
    attempts: dict[str, AttemptRecord]
    watchers: int = 0


class Watched:
    def __init__(self) -> None:
        self._views: dict[str, View] = {}

    @contextmanager
    def following(self, ledger: Ledger, job_id: str) -> Iterator[View | None]:
        """None: it is not there, or is not single. The look is at once: what is durable later, `saw` tells."""
        view = self._views.get(job_id) or _read(ledger, job_id)
        if view is None:
            yield None
            return
        self._views[job_id] = view
        view.watchers += 1
        try:
            yield view
        finally:
            view.watchers -= 1
            if not view.watchers and self._views.get(job_id) is view:
                del self._views[job_id]

    def saw(self, changes: Changes) -> None:
        """They are durable."""
        if not self._views:
            return
        parts: list[JobTerms | JobProgress] = [*changes.changed_terms, *changes.progress]
        for part in parts:
            if (view := self._views.get(part.id)) is not None:
                bring_up(view.job, part)
        for task in changes.tasks:
            if (view := self._views.get(task.job_id)) is not None:
                view.task = task
        for attempt in changes.attempts:
            if (view := self._views.get(attempt.job_id)) is not None:
                view.attempts[attempt.attempt] = attempt


def _read(ledger: Ledger, job_id: str) -> View | None:
    job = ledger.jobs([job_id]).get(job_id)
    if job is None or job.size:
        return None
    attempts = {one.attempt: one for one in ledger.attempts_of(job_id)}
    return View(job, ledger.tasks([job_id]).get(job_id), attempts)
