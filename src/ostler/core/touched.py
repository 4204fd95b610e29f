"""What has changed since the last commit."""

from typing import TYPE_CHECKING, Final

from ostler.domain.records import (
    ArtifactRecord,
    DepartedRecord,
    FeedRecord,
    JobRecord,
    JobTerms,
    KeptRecord,
    ManifestRecord,
    NeedRecord,
    OutputKey,
    ReceiptRecord,
)

if TYPE_CHECKING:
    from ostler.core.attempt import Sent
    from ostler.core.fleet import Attempt, Job, Task, Worker
    from ostler.core.holding import Holding

TALLY: Final = "tally"
"""The scope under which the ledger keeps how many jobs have ended: ledger/base.py says the same word."""


class Gone:
    """What leaves the ledger."""

    def __init__(self) -> None:
        self.jobs: dict[str, None] = {}
        self.tasks: list[str] = []
        self.outputs: list[OutputKey] = []
        self.feed: list[int] = []
        self.receipts: list[str] = []
        self.departed: list[DepartedRecord] = []


class Touched:
    def __init__(self) -> None:
        self.new_jobs: dict[str, JobRecord] = {}
        self.jobs: dict[str, Job] = {}
        self.tasks: dict[str, Task] = {}
        self.attempts: dict[str, Attempt] = {}
        self.unwritten: list[str] = []
        """Names of those tasks and attempts that had no row of their own."""
        self.sent: dict[str, Sent] = {}
        """Those written down together, where others came or some left."""
        self.sending: dict[tuple[str, str, Holding], Sent] = {}
        """By job, worker and room: where others of this batch are written."""
        self.workers: dict[str, Worker] = {}
        self.feed: list[FeedRecord] = []
        self.users: set[str] = set()
        self.receipts: dict[str, ReceiptRecord] = {}
        self.terms: dict[str, JobTerms] = {}
        self.artifacts: list[ArtifactRecord] = []
        self.manifest: list[ManifestRecord] = []
        self.kept: dict[tuple[str, str], KeptRecord] = {}
        self.needs: list[NeedRecord] = []
        self.gone = Gone()
