"""Who did what to which object: rows that are only ever added, each bound to the one before it by a hash."""

from collections.abc import Iterable
from hashlib import sha256

import msgspec

SCOPE = "audit"
"""Where the ledger keeps the chain's two ends: the row that was written last, and the last that was removed by age."""
HEAD, ANCHOR = "head", "anchor"
PRUNED = "audit.prune"
"""The action of the row that tells of a removal by age; its detail names the last row that went."""

_encode = msgspec.json.Encoder().encode


class AuditRecord(msgspec.Struct, kw_only=True):
    seq: int = 0
    at: float
    actor: str = ""
    """The token's id; empty: nobody's."""
    user: str = ""
    role: str = ""
    source: str = ""
    """The address that it came from."""
    action: str
    object: str = ""
    outcome: str = "done"
    """`done` or `refused`."""
    detail: str = ""
    hash: str = ""


class Link(msgspec.Struct, frozen=True):
    """A row, as the next one is bound to it."""

    seq: int
    hash: str

    def __str__(self) -> str:
        return f"{self.seq}:{self.hash}"


START = Link(0, "0" * 64)


def parse_link(text: str) -> Link | None:
    """`SEQ:HASH`, as a link is written."""
    seq, _, digest = text.strip().partition(":")
    whole = seq.isdecimal() and len(seq) < 19 and len(digest) == 64 and set(digest) <= set("0123456789abcdef")
    return Link(int(seq), digest) if whole else None


def kept_link(kept: dict[str, bytes], end: str) -> Link | None:
    return parse_link(kept[end].decode("utf-8", "replace")) if end in kept else None


def hash_of(before: str, row: AuditRecord) -> str:
    """Every field but the hash itself, in order, behind the hash of the row before."""
    told = [getattr(row, field) for field in row.__struct_fields__ if field != "hash"]
    return sha256(before.encode() + b"\n" + _encode(told)).hexdigest()


def seal(rows: Iterable[AuditRecord], head: Link) -> Link:
    """Number the rows and bind each to the one before; the new head."""
    for row in rows:
        row.seq = head.seq + 1
        row.hash = hash_of(head.hash, row)
        head = Link(row.seq, row.hash)
    return head


class Verifier:
    """The chain, looked at from the newest row to the oldest, a page at a time."""

    def __init__(self, head: Link | None, anchor: Link | None = None) -> None:
        self.head = head
        self._anchor = anchor or START
        self._above: AuditRecord | None = None
        self._anchored = anchor is None
        self.rows = 0
        self.faults: list[tuple[int, str]] = []
        """By row, the newest first."""

    def add(self, row: AuditRecord) -> None:
        self.rows += 1
        self._check_head(row)
        if self._above is not None:
            self._bind(self._above, Link(row.seq, row.hash))
        if row.action == PRUNED and not self._anchored:
            self._anchored = True
            if row.detail != str(self._anchor):
                self._fault(row.seq, f"says that row {row.detail} was the last to go, but it was {self._anchor}")
        self._above = row

    def end(self) -> None:
        """There are no more."""
        if self._above is not None:
            self._bind(self._above, self._anchor)
        elif self.head is not None and self.head != self._anchor:
            self._fault(self.head.seq, "was written, and is gone with all before it")
        if not self._anchored:
            self._fault(self._anchor.seq, "was removed by age, but no row tells of it")

    @property
    def first_fault(self) -> tuple[int, str] | None:
        return min(self.faults, default=None)

    def _check_head(self, row: AuditRecord) -> None:
        """Above it there may be rows that were written since it was noted."""
        if self.head is None:
            return
        if self._above is None and row.seq < self.head.seq:
            self._fault(row.seq + 1, f"is gone, and all after it up to row {self.head.seq}")
        elif row.seq == self.head.seq and row.hash != self.head.hash:
            self._fault(row.seq, "has another hash than the one that was noted when it was written")

    def _bind(self, row: AuditRecord, before: Link) -> None:
        if row.seq != before.seq + 1:
            self._fault(before.seq + 1, f"is gone, or out of its place: row {row.seq} follows row {before.seq}")
        elif row.hash != hash_of(before.hash, row):
            self._fault(row.seq, "is not as it was written")

    def _fault(self, seq: int, what: str) -> None:
        self.faults.append((seq, what))
