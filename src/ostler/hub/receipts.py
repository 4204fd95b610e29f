"""Which submits have been answered, by their keys: of one that nobody has sent before, nobody need look. That look was
the only one of most submits."""

import math

from ostler.domain.records import Changes
from ostler.ledger.base import Ledger

MOST = 50_000
"""Keys, at some 150 bytes each. Once there have been more, every key is looked for, until the hub starts again."""


class Receipts:
    def __init__(self) -> None:
        self._keys: set[str] | None = None
        """All that the ledger has, and perhaps some that it has no more. None: nobody knows."""

    def load(self, ledger: Ledger) -> None:
        keys = ledger.old_receipts(before=math.inf, limit=MOST + 1)
        self._keys = set(keys) if len(keys) <= MOST else None

    def may_have(self, key: str) -> bool:
        return self._keys is None or key in self._keys

    def decided(self, changes: Changes) -> None:
        """These are about to be written."""
        if self._keys is None:
            return
        self._keys.update(receipt.key for receipt in changes.receipts)
        self._keys.difference_update(changes.gone_receipts)
        if len(self._keys) > MOST:
            self._keys = None
