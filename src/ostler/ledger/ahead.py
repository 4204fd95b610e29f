"""Tasks of an array that were sent ahead and have no rows yet, as if they had: whoever looks at tasks sees them too.

There may be many thousands of them, so no more is read of an entry than where it begins and ends, unless what is looked
for may be in it.
"""

import math
from collections.abc import Iterator

from ostler.domain.records import AttemptRecord, SentAhead, SentSpan, TaskRecord, ahead_scope, sent_ahead, sent_span
from ostler.ledger.base import Ledger


def task_of(ledger: Ledger, job_id: str, index: int) -> tuple[TaskRecord | None, list[AttemptRecord]]:
    """One task of an array, and its attempts; None: nothing has happened to it."""
    task_id = f"{job_id}.{index}"
    task = ledger.tasks([task_id]).get(task_id)
    if task is None:
        for sent in _between(_entries(ledger, job_id), index, index):
            for at, attempt, before in sent.attempts:
                if at == index:
                    return sent.task(index, attempt), [sent.attempt(index, attempt, before)]
        task = ledger.tasks([task_id]).get(task_id)  # what left its entry meanwhile has its row by then
    return task, ledger.attempts_of(task_id) if task is not None else []


def placed(ledger: Ledger, job_id: str, *, after: int = -1, limit: int = 1000) -> list[TaskRecord]:
    """The tasks to which something has happened, in their order."""
    entries = _entries(ledger, job_id)  # first: what leaves its entry meanwhile has its row by then
    found = {task.index: task for task in ledger.tasks_of(job_id, after=after, limit=limit)}
    ahead: dict[int, tuple[SentAhead, str]] = {}
    last = max(found) if len(found) == limit else math.inf
    for sent in _between(entries, after + 1, last):
        if sent.low > last:
            break
        ahead |= {index: (sent, attempt) for index, attempt, _ in sent.attempts if index > after}
        if len(found.keys() | ahead) >= limit:
            last = sorted(found.keys() | ahead)[limit - 1]
    wanted = sorted(found.keys() | ahead)[:limit]
    return [found[index] if index in found else ahead[index][0].task(index, ahead[index][1]) for index in wanted]


def _entries(ledger: Ledger, job_id: str) -> list[tuple[SentSpan, bytes]]:
    """By where they begin."""
    found = [(sent_span(value), value) for value in ledger.kept(ahead_scope(job_id)).values()]
    return sorted(found, key=lambda one: one[0].low)


def _between(entries: list[tuple[SentSpan, bytes]], low: int, high: float) -> Iterator[SentAhead]:
    """Those that may have tasks of these indices."""
    return (sent_ahead(value) for span, value in entries if span.low <= high and span.high >= low)
