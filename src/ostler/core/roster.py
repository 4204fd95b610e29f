"""Workers in the order of their ids, in blocks: the first of any set of them is found without a walk over the fleet."""

from bisect import bisect_right
from typing import Final

MOST_IN_A_BLOCK: Final = 128


class Block:
    __slots__ = ("bits", "names", "workers")

    def __init__(self, names: list[str], bits: list[int]) -> None:
        self.names = names
        self.bits = bits
        self.workers = sum(bits)


class Roster:
    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._begins: list[str] = []
        """The first name in each."""

    def add(self, name: str, bit: int) -> None:
        if not self._blocks:
            self._blocks, self._begins = [Block([], [])], [name]
        at = max(0, bisect_right(self._begins, name) - 1)
        block = self._blocks[at]
        place = bisect_right(block.names, name)
        block.names.insert(place, name)
        block.bits.insert(place, bit)
        block.workers |= bit
        self._begins[at] = block.names[0]
        if len(block.names) > MOST_IN_A_BLOCK:
            half = len(block.names) // 2
            halves = [Block(block.names[:half], block.bits[:half]), Block(block.names[half:], block.bits[half:])]
            self._blocks[at : at + 1] = halves
            self._begins[at : at + 1] = [one.names[0] for one in halves]

    def first(self, workers: int) -> str:
        """Of these workers, of which there is one at least."""
        for block in self._blocks:
            found = workers & block.workers
            if found:
                for name, bit in zip(block.names, block.bits, strict=True):
                    if found & bit:
                        return name
        raise KeyError(workers)
