"""What the rest of a GPU is worth to those who share GPUs, by the sizes of the shares that are asked for.

The dual of cutting one GPU into shares: each size is given a price such that no packing of one GPU is worth more than
one GPU. A rest is then worth the best packing of it, and what a share leaves behind can be compared with what it takes.
"""

from collections.abc import Generator, Mapping
from typing import Final

GRID: Final = 10
"""Thousandths of a GPU: sizes are rounded up to this."""
MAX_SIZES: Final = 48
"""The sizes that are asked for most; every other one counts as the next larger of them."""
MAX_ROUNDS: Final = 400
"""A packing found in each; the prices hardly move long before."""
_TINY: Final = 1e-9


def worth_of_rests(wanted: Mapping[int, float]) -> Generator[int, None, list[int]]:
    """In slices, each of about as many operations as it yields. Returns, for 0 to 1000 thousandths that are left of a
    GPU, what they are worth in thousandths of one."""
    sizes = _grouped(wanted)
    if not sizes:
        return list(range(1001))
    packings = _Packings(sizes)
    for _ in range(MAX_ROUNDS):
        prices = packings.prices()
        best, packing = _best_packings(packings.sizes, prices)
        yield 8 * len(sizes) * (1000 // GRID)
        if min(prices) < -_TINY:
            packings.enter_surplus(prices.index(min(prices)))
        elif best[-1] > 1 + 1e-7:
            packings.enter(packing)
        else:
            break
    return [round(1000 * best[left // GRID] / max(1.0, best[-1])) for left in range(1000)] + [1000]


def _grouped(wanted: Mapping[int, float]) -> dict[int, float]:
    """Sizes in steps of the grid, with how many are wanted of each."""
    counted: dict[int, float] = {}
    for size, count in wanted.items():
        steps = -(-size // GRID)
        counted[steps] = counted.get(steps, 0.0) + count
    kept = sorted(sorted(counted, key=lambda steps: -counted[steps])[:MAX_SIZES])
    grouped = dict.fromkeys(kept, 0.0)
    for steps, count in counted.items():
        grouped[next((one for one in kept if one >= steps), kept[-1])] += count
    return grouped


def _best_packings(sizes: list[int], prices: list[float]) -> tuple[list[float], list[int]]:
    """For each rest what its best packing is worth; and the best packing of a whole GPU, as counts by size."""
    whole = 1000 // GRID
    best, last = [0.0] * (whole + 1), [-1] * (whole + 1)
    priced = [(size, price, place) for place, (size, price) in enumerate(zip(sizes, prices, strict=True)) if price > 0]
    for rest in range(1, whole + 1):
        found, which = best[rest - 1], -1
        for size, price, place in priced:
            if size <= rest and best[rest - size] + price > found + _TINY:
                found, which = best[rest - size] + price, place
        best[rest], last[rest] = found, which
    packing, rest = [0] * len(sizes), whole
    while rest > 0:
        if last[rest] < 0:
            rest -= 1
        else:
            packing[last[rest]] += 1
            rest -= sizes[last[rest]]
    return best, packing


class _Packings:
    """The basis of the linear program: as many packings as sizes, and how often each is used."""

    def __init__(self, wanted: Mapping[int, float]) -> None:
        self.sizes = list(wanted)
        of_one = [1000 // GRID // size for size in self.sizes]
        self._inverse = [[1 / n if i == j else 0.0 for j in range(len(of_one))] for i, n in enumerate(of_one)]
        self._costs = [1.0] * len(of_one)
        self._used = [wanted[size] / n for size, n in zip(self.sizes, of_one, strict=True)]

    def prices(self) -> list[float]:
        return [
            sum(cost * row[place] for cost, row in zip(self._costs, self._inverse, strict=True))
            for place in range(len(self.sizes))
        ]

    def enter(self, packing: list[int]) -> None:
        change = [sum(n * row[place] for place, n in enumerate(packing) if n) for row in self._inverse]
        self._pivot(change, 1.0)

    def enter_surplus(self, place: int) -> None:
        """More of a size than is wanted does no harm."""
        self._pivot([-row[place] for row in self._inverse], 0.0)

    def _pivot(self, change: list[float], cost: float) -> None:
        limits = [
            (max(0.0, used) / by, row)
            for row, (used, by) in enumerate(zip(self._used, change, strict=True))
            if by > _TINY
        ]
        if not limits:
            return
        amount, leaving = min(limits)
        pivot = [value / change[leaving] for value in self._inverse[leaving]]
        for row, by in enumerate(change):
            if row != leaving and by:
                self._inverse[row] = [
                    value - by * other for value, other in zip(self._inverse[row], pivot, strict=True)
                ]
                self._used[row] -= by * amount
        self._inverse[leaving], self._used[leaving], self._costs[leaving] = pivot, amount, cost
