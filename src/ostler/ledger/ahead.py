"""Tasks of an array that were sent ahead and have no rows yet, as if they had: whoever looks at tasks sees them too."""

from ostler.domain.records import AttemptRecord, TaskRecord, ahead_scope
from ostler.domain.records import sent_ahead as decode
from ostler.ledger.base import Ledger


def sent_ahead(ledger: Ledger, job_id: str) -> dict[int, tuple[TaskRecord, AttemptRecord]]:
    """By index. To be asked for before the rows: what leaves them meanwhile is there by then."""
    kept = ledger.kept(ahead_scope(job_id))
    return {task.index: (task, attempt) for value in kept.values() for task, attempt in decode(value).rows()}


def placed(ledger: Ledger, job_id: str, *, after: int = -1, limit: int = 1000) -> list[TaskRecord]:
    """The tasks to which something has happened, in their order."""
    found = {index: task for index, (task, _) in sent_ahead(ledger, job_id).items() if index > after}
    found |= {task.index: task for task in ledger.tasks_of(job_id, after=after, limit=limit)}
    return [found[index] for index in sorted(found)[:limit]]
