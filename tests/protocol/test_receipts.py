"""The keys of submits: which of them are looked for in the ledger."""

import pytest
from tests.protocol.hub import RunningHub

from ostler.domain.records import Changes, ReceiptRecord
from ostler.hub import receipts
from ostler.hub.receipts import Receipts
from ostler.ledger.memory import MemoryLedger

JOB = {"command": ["true"], "gpu_count": 8}


def receipt(key: str) -> ReceiptRecord:
    return ReceiptRecord(key=key, digest="d", ids=["job"], at=1.0)


def known(*keys: str) -> tuple[Receipts, MemoryLedger]:
    ledger, found = MemoryLedger(), Receipts()
    ledger.commit(Changes(receipts=[receipt(key) for key in keys]))
    found.load(ledger)
    return found, ledger


def test_before_the_ledger_was_read_it_may_have_every_key() -> None:
    assert Receipts().may_have("any")


def test_it_may_have_what_was_there_and_what_is_decided_and_no_longer_what_is_removed() -> None:
    found, _ = known("before")
    assert [found.may_have(key) for key in ("before", "new")] == [True, False]
    found.decided(Changes(receipts=[receipt("new")], gone_receipts=["before"]))
    assert [found.may_have(key) for key in ("before", "new")] == [False, True]


def test_where_there_are_more_keys_than_are_kept_in_mind_each_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receipts, "MOST", 2)
    few, ledger = known("one", "two")
    assert not few.may_have("new")
    few.decided(Changes(receipts=[receipt("three")]))
    assert few.may_have("new")
    ledger.commit(Changes(receipts=[receipt("three")]))
    many = Receipts()
    many.load(ledger)
    assert many.may_have("new")


async def test_only_a_key_that_has_been_sent_before_is_looked_for(
    hub: RunningHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_for: list[str] = []
    look = hub._ledger.receipt

    def receipt_of(key: str) -> ReceiptRecord | None:
        looked_for.append(key.rpartition(":")[2])
        return look(key)

    monkeypatch.setattr(hub._ledger, "receipt", receipt_of)
    first = await hub.api.post("/v1/jobs", JOB, 201, headers={"Idempotency-Key": "a"})
    await hub.api.post("/v1/jobs", JOB, 201, headers={"Idempotency-Key": "b"})
    assert looked_for == []
    assert (await hub.api.post("/v1/jobs", JOB, 200, headers={"Idempotency-Key": "a"}))["id"] == first["id"]
    assert looked_for == ["a"]
