"""The expected end of a job, and its comparison with the actual end."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from examples.demo.board import Row

Document = dict[str, Any]


@dataclass
class Expectation:
    """How one job should end, and where."""

    job_id: str
    what: str
    state: str = "succeeded"
    workers: tuple[str, ...] = ()
    exit_code: int | None = None
    check: Callable[[Document], str] | None = None
    """Looks at more of the job and returns the problem, or nothing."""

    def compare(self, document: Document) -> Row:
        where = f" on {document['worker']}" if document["worker"] else ""
        return Row(document["name"], self.what, document["state"] + where, self._problem(document))

    def _problem(self, document: Document) -> str:
        if document["state"] != self.state:
            return f"should be {self.state}; the hub's reason: {document['reason'] or 'none'}"
        if self.workers and document["worker"] not in self.workers:
            return f"should be on {' or '.join(self.workers)}"
        if self.exit_code is not None and document["exit_code"] != self.exit_code:
            return f"should exit with {self.exit_code}, not {document['exit_code']}"
        return self.check(document) if self.check else ""
