"""What really happened on the machines, compared with what the hub says happened."""

from collections import Counter

from ostler.domain import states
from ostler.ledger.base import Ledger

FEED_PAGE = 10_000


class Account:
    def __init__(self) -> None:
        self.succeeded: set[str] = set()
        """Attempts of which a process ended well."""
        self.taken: set[tuple[str, str]] = set()
        """(task, attempt) of the successes that the hub has told a machine it took."""
        self.requeues: Counter[str] = Counter()
        self.cancelled: set[str] = set()

    def mistakes(self, ledger: Ledger) -> list[str]:
        """Each success is some process's, recorded once, and only whoever brought one is told that it did."""
        recorded = _successes(ledger)
        found = [f"{one} succeeded, and its process did not" for one in recorded if one[1] not in self.succeeded]
        times: Counter[str] = Counter()
        for (task_id, _), count in recorded.items():
            times[task_id] += count
        too_often = [name for name, count in times.items() if count > 1 + self.requeues[_job(name)]]
        found += [f"{name} succeeded {times[name]} times" for name in too_often]
        unrecorded = [one for one in sorted(self.taken) if one not in recorded and _job(one[0]) not in self.cancelled]
        return found + [f"{attempt} was told that it completed {task_id}" for task_id, attempt in unrecorded]


def _job(task_id: str) -> str:
    return task_id.partition(".")[0]


def _successes(ledger: Ledger) -> Counter[tuple[str, str]]:
    """(task, attempt), as observers have seen them."""
    found: Counter[tuple[str, str]] = Counter()
    last = 0
    while page := ledger.feed(after=last, limit=FEED_PAGE):
        last = page[-1].seq
        for line in page:
            attempt = line.body.get("attempt")
            if line.body.get("state") == states.SUCCEEDED and attempt:
                found[str(line.body.get("task") or line.subject), str(attempt)] += 1
    return found
