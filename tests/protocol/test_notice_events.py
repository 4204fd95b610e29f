"""Which lines of the feed are worth telling of, and as what."""

import pytest

from ostler.domain.records import AttemptRecord, FeedRecord
from ostler.hub.notices import _was_lost, event_of
from ostler.ledger.memory import MemoryLedger


def line(**body: str) -> FeedRecord:
    return FeedRecord(seq=1, at=0.0, kind="job", subject="j", body=dict(body))


@pytest.mark.parametrize(
    ("body", "event"),
    [
        ({"state": "succeeded"}, "end"),
        ({"state": "failed", "reason": "exit code 1"}, "failed"),
        ({"state": "cancelled"}, "failed"),
        ({"state": "unschedulable"}, "failed"),
        ({"state": "pending", "reason": "preempted by other", "attempt": ""}, "preempted"),
        ({"state": "pending", "reason": "gpu-1 no longer has it", "attempt": "a1"}, "lost"),
        ({"state": "pending"}, ""),
        ({"state": "pending", "reason": "its priority is 3"}, ""),
        ({"state": "pending", "reason": "requeued", "attempt": ""}, ""),
        ({"state": "running", "attempt": "a1"}, ""),
        ({"state": "orphaned", "attempt": "a1"}, ""),
    ],
)
def test_what_there_may_be_to_tell(body: dict[str, str], event: str) -> None:
    assert event_of(line(**body)) == event


@pytest.mark.parametrize(("state", "lost"), [("lost", True), ("lapsed", True), ("failed", False), ("returned", False)])
def test_whether_it_was_lost_its_attempt_shows(state: str, lost: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = AttemptRecord(attempt="a1", task_id="j", job_id="j", worker="w", state=state, assigned_at=0.0)
    ledger = MemoryLedger()
    monkeypatch.setattr(ledger, "attempts_of", lambda task_id: [attempt])
    assert _was_lost(ledger, line(state="pending", reason="away", attempt="a1")) is lost
    assert not _was_lost(ledger, line(state="pending", reason="away", attempt="a2"))
