"""What is asked for: the shapes that run and wait, and those that lately did. What free room is worth follows from it.

It is learnt on the way. A fleet that has seen nothing yet takes it that single GPUs and whole machines are wanted.
"""

from collections.abc import Generator, Mapping
from typing import Final

from ostler.core.index import Index, Shape
from ostler.core.placing.worth import Asked, Kind, Machine, Worth, build
from ostler.domain.resources import Request

SUPPOSED: Final = 4.0
"""How many jobs' weight it has what a fleet is taken to be for."""
REMEMBERED: Final = 64
"""At least so many of the jobs that have left count beside those that are there."""
REMEMBERED_PART: Final = 0.125
"""Or so many of them, by the number of those that are there."""
LEARN_AFTER: Final = 8
"""At least so many jobs come or go before the worth of room is looked at again."""
LEARN_AFTER_PART: Final = 0.25
"""Or so many of them, by the number of those that are there."""
MAX_UNIT = 1e100
SLICE: Final = 1500
"""Operations towards a new look that one decision does on the way."""


class Mix:
    def __init__(self, index: Index) -> None:
        self._index = index
        self.worth = Worth([], 1, [0], list(range(1001)))
        """Of free room, as it was last learnt."""
        self._has_learnt = False
        self._building: Generator[int, None, Worth] | None = None
        self._news = LEARN_AFTER
        self._learnt_for = 0
        """How often kinds of machines had come or gone."""
        self._resident = 0
        self._unit = 1.0
        """What one job counts that leaves now, in the shapes' `lately`: it grows, so that older ones fade."""
        self._taken = 0
        self._given = 0

    def entered(self) -> None:
        self._resident += 1
        self._news += 1

    def left(self, shape: Shape) -> None:
        self._resident -= 1
        self._news += 1
        self._count(shape)

    def took(self, shape: Shape, is_one_of_many: bool) -> None:
        """Room was given to a task. The tasks of an array count one by one, for as a job they would count once."""
        self._taken += 1
        if is_one_of_many:
            self._news += 1
            self._count(shape)

    def gave(self) -> None:
        """Room came back."""
        self._given += 1

    def _count(self, shape: Shape) -> None:
        self._unit *= 1 + 1 / max(REMEMBERED, REMEMBERED_PART * self._resident)
        shape.lately += self._unit
        if self._unit > MAX_UNIT:
            for one in self._index.shapes():
                one.lately /= self._unit
            self._unit = 1.0

    @property
    def free_gpus(self) -> Mapping[Kind, int]:
        return self._index.machines.free_gpus

    @property
    def turnover(self) -> float:
        """1: room comes back and is given again; 0: what is given stays given."""
        return min(1.0, 2 * self._given / max(1, self._taken))

    def learn(self) -> bool:
        """Go on with what is being learnt, or begin anew where much has changed. True: the worth of room is another."""
        if self._building is None:
            if not self._is_due():
                return False
            self._news, self._learnt_for = 0, self._index.machines.changes
            self._building = build(self._asked(), dict(self._index.machines.counts), self.turnover)
        done = 0
        try:
            while done < SLICE or not self._has_learnt:
                done += next(self._building)
        except StopIteration as built:
            self._building = None
            self.worth = built.value
            self._has_learnt = True
            return True
        return False

    def _is_due(self) -> bool:
        much = max(LEARN_AFTER, LEARN_AFTER_PART * self._resident)
        return self._news >= much or self._learnt_for != self._index.machines.changes

    def _asked(self) -> list[Asked]:
        counts: dict[Request, float] = {}
        for shape in self._index.shapes():
            weight = shape.jobs + shape.lately / self._unit
            if weight > 0.01:
                counts[shape.profile] = counts.get(shape.profile, 0.0) + weight * shape.nodes
        for request, weight in supposed(self._index.machines.counts).items():
            counts[request] = counts.get(request, 0.0) + weight
        return [Asked(request, weight) for request, weight in counts.items()]


def supposed(machines: Mapping[Machine, int]) -> dict[Request, float]:
    """Of machines with so many GPUs: one GPU with its part of the cores, and the whole machine."""
    cores: dict[int, int] = {}
    parts: dict[int, float] = {}
    everything = sum(machine.gpus * number for machine, number in machines.items())
    for machine, number in machines.items():
        cores[machine.gpus] = min(machine.cores_milli, cores.get(machine.gpus, machine.cores_milli))
        parts[machine.gpus] = parts.get(machine.gpus, 0.0) + machine.gpus * number / everything
    found: dict[Request, float] = {}
    for gpus, part in parts.items():
        for wanted in (1, gpus):
            request = Request(gpu_count=wanted, cores_milli=cores[gpus] * wanted // gpus)
            found[request] = found.get(request, 0.0) + SUPPOSED / 2 * part
    return found
