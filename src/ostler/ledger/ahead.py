"""Tasks of an array that were sent ahead and have no rows yet, as if they had: whoever looks at tasks sees them too.

There may be many thousands of them, so a record is made only of what is looked at.
"""

from ostler.domain.records import AttemptRecord, SentAhead, TaskRecord, ahead_scope, sent_ahead
from ostler.ledger.base import Ledger


def task_of(ledger: Ledger, job_id: str, index: int) -> tuple[TaskRecord | None, list[AttemptRecord]]:
    """One task of an array, and its attempts; None: nothing has happened to it."""
    task_id = f"{job_id}.{index}"
    for _ in range(2):  # what leaves its entry while that is looked for has its row by then
        task = ledger.tasks([task_id]).get(task_id)
        if task is not None:
            return task, ledger.attempts_of(task_id)
        for sent in _all(ledger, job_id):
            for at, attempt, before in sent.attempts:
                if at == index:
                    return sent.task(index, attempt), [sent.attempt(index, attempt, before)]
    return None, []


def placed(ledger: Ledger, job_id: str, *, after: int = -1, limit: int = 1000) -> list[TaskRecord]:
    """The tasks to which something has happened, in their order."""
    # First: what leaves its entry meanwhile has its row by then.
    ahead = {index: (sent, attempt) for sent in _all(ledger, job_id) for index, attempt, _ in sent.attempts}
    found = {task.index: task for task in ledger.tasks_of(job_id, after=after, limit=limit)}
    wanted = sorted({*found, *(index for index in ahead if index > after)})[:limit]
    return [found[index] if index in found else ahead[index][0].task(index, ahead[index][1]) for index in wanted]


def _all(ledger: Ledger, job_id: str) -> list[SentAhead]:
    return [sent_ahead(value) for value in ledger.kept(ahead_scope(job_id)).values()]
