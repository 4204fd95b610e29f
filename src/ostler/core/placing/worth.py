"""What free room is worth to those who are likely to ask for it.

The worth of a machine is, over everything that is asked for, how much of its free GPUs that could use: none where it
would not fit, and no more than its cores can feed. Beside that counts how well the rests of shared GPUs can be cut, and
whether those who take no other type of GPU will need what is free of the machine's. The best place for a task is the
one whose worth it lowers least.

All amounts are whole numbers, small enough to be exact as floating-point numbers too: what columns.py computes for
many machines at once is what is computed here for one.
"""

import itertools
from collections.abc import Generator, Iterable, Mapping
from typing import Final, NamedTuple

from ostler.core.placing.packing import worth_of_rests
from ostler.core.room import Room
from ostler.domain.resources import Offer, Request

WHOLE: Final = 1000
"""Thousandths of a GPU."""
FEED_SLACK: Final = 1.5
"""A GPU job may use as many GPUs as this times what its share of the free cores could feed: others need fewer."""
RESTS: Final = 8
"""How much the rests of shared GPUs count beside the rest."""
PRESSURE: Final = 2.0
"""What a GPU costs beside its worth when those who insist on its kind will need all that is free of it."""
SOONEST: Final = 4
"""The power of the part of it that they will need: what will hardly get scarce costs next to nothing."""
STEP = 30
"""Thousandths of a GPU: differences below are no reason to prefer a machine."""
SEVERAL: Final = 1.5
"""Where room comes back, jobs with several GPUs count this times their number: only whole machines will do for them,
and those come back last."""
SEVERAL_AT_MOST: Final = 0.15
"""Unless they are more of all jobs anyway."""
_PARTS: Final = 1 << 20
"""All weights together."""
FINE: Final = 1 << 10
SCALE: Final = _PARTS * FINE
"""One thousandth of a GPU, as worth is counted here."""
_CORE_STEPS: Final = 1024
_CLASSES_A_SLICE: Final = 128


class Kind(NamedTuple):
    """What a machine's GPUs are, as far as requests tell them apart."""

    backend: str
    gpu_type: str
    vram_mib: int
    gpu_names: tuple[str, ...] = ()
    """The longer names, because a request may name one build of a type."""


class Machine(NamedTuple):
    """What machines have when they are empty."""

    kind: Kind
    gpus: int
    cores_milli: int


class Need(NamedTuple):
    """What a request takes of a machine of one kind."""

    cores_milli: int
    gpus: int
    part: int
    """Of each GPU, in thousandths."""


def machine_of(offer: Offer) -> Machine | None:
    if not offer.devices:
        return None
    largest_mib = max(device.vram_mib for device in offer.devices)
    kind = Kind(offer.backend, offer.gpu_type.lower(), largest_mib, offer.gpu_names)
    return Machine(kind, len(offer.devices), offer.cores_milli)


def need_on(request: Request, kind: Kind) -> Need | None:
    """None: it takes no GPU of this kind."""
    if request.backend and request.backend != kind.backend:
        return None
    if not request.accepts_type(kind.gpu_type, kind.gpu_names):
        return None
    gpus = request.gpu_count or int(request.prefers_cuda and kind.backend == "nvidia")
    if gpus:
        return Need(request.cores_milli, gpus, WHOLE) if gpus * kind.vram_mib >= request.vram_mib else None
    if request.prefers_cuda or not request.shares_gpu or request.vram_mib > kind.vram_mib:
        return None
    part = -(-WHOLE * request.vram_mib // kind.vram_mib) if kind.vram_mib else WHOLE
    return Need(request.cores_milli, 1, min(WHOLE - 1, max(1, part, request.gpu_milli)))


def free_parts(room: Room) -> tuple[int, ...]:
    """Of each GPU what is free, in thousandths; all of it only where nobody holds any."""
    return tuple(
        WHOLE
        if users == 0
        else min(WHOLE - 1, WHOLE * max(0, room.free_vram(i)) // device.vram_mib)
        if device.vram_mib
        else 0
        for i, (users, device) in enumerate(zip(room.users, room.offer.devices, strict=True))
    )


class Asked(NamedTuple):
    """What is asked for, and how much of it."""

    request: Request
    weight: float


class Table(NamedTuple):
    """Of one kind of machine, for each group of needs: their weights, and their weights by core, up to each rank."""

    weights: list[list[int]]
    by_core: list[list[int]]


class Worth:
    def __init__(self, groups: list[tuple[int, int]], core_step: int, ranks: list[int], rests: list[int]) -> None:
        self.groups = groups
        """(GPUs, part of each) that are asked for, the smallest parts first."""
        self.parts = sorted({part for _, part in groups})
        self.core_step = core_step
        self.ranks = ranks
        """How many distinct needs for cores lie within each number of steps."""
        self.rests = [RESTS * SCALE * rest for rest in rests]
        self.tables: dict[Kind, Table] = {}
        self.insisted: dict[Kind, float] = {}
        """The part of all GPUs asked for that those want of a kind who do not take every kind."""
        self.pressure: dict[Kind, int] = {}
        """Per thousandth of a GPU that is taken."""

    def press(self, free: Mapping[Kind, int]) -> None:
        """So many GPUs are free. Until these are taken too, as much of all that comes will insist as does now."""
        everything = sum(free.values())
        for kind, part in self.insisted.items():
            needed = min(1.0, part * everything / max(1, free.get(kind, 0)))
            self.pressure[kind] = round(PRESSURE * SCALE * needed**SOONEST)

    def of(self, kind: Kind, cores_milli: int, free: Iterable[int]) -> int:
        """The worth of a machine with so much free."""
        free = sorted(free, reverse=True)
        total = sum([self.rests[part] for part in free])
        table = self.tables.get(kind)
        if table is None or cores_milli < 0:
            return total
        top, step, ranks = len(self.ranks) - 1, self.core_step, self.ranks
        here = ranks[min(int(cores_milli / step), top)]
        left, room = len(free), sum(free)
        for (gpus, part), weights, by_core in zip(self.groups, table.weights, table.by_core, strict=True):
            while left and free[left - 1] < part:
                left -= 1
                room -= free[left]
            least = gpus * part
            if room >= least:
                fed = min(FEED_SLACK * least * cores_milli / room, cores_milli)
                rank = ranks[min(int(fed / step), top)]
                total += room * weights[rank] * FINE + cores_milli * (by_core[here] - by_core[rank])
        return total


def in_steps(change: int) -> int:
    """A change of worth, rounded to what is a reason to prefer a machine."""
    return (2 * change + STEP * SCALE) // (2 * STEP * SCALE)


def build(asked: list[Asked], machines: Mapping[Machine, int], turnover: float) -> Generator[int, None, Worth]:
    """In slices, each of about as many operations as it yields: a decision must not wait for all of it."""
    kinds = sorted({machine.kind for machine in machines})
    needs: dict[Kind, list[Need | None]] = {}
    for kind in kinds:
        found: list[Need | None] = []
        for start in range(0, len(asked), _CLASSES_A_SLICE):
            found += [_coarse(need_on(one.request, kind)) for one in asked[start : start + _CLASSES_A_SLICE]]
            yield 10 * _CLASSES_A_SLICE
        needs[kind] = found
    typical = [next((need for kind in kinds if (need := needs[kind][i])), None) for i in range(len(asked))]
    shares: dict[int, float] = {}
    for need, one in zip(typical, asked, strict=True):
        if need is not None and need.part < WHOLE:
            shares[need.part] = shares.get(need.part, 0.0) + one.weight
    rests = yield from worth_of_rests(shares)
    weights = _weights(asked, typical, turnover)
    cores = sorted({need.cores_milli for need in typical if need is not None})
    core_step = max(1, -(-max(cores, default=0) // _CORE_STEPS))
    cores = sorted({one // core_step for one in cores})
    ranks = [0] * (max(cores, default=0) + 1)
    for rank, steps in enumerate(cores, 1):
        ranks[steps:] = [rank] * (len(ranks) - steps)
    found_groups = {(need.gpus, need.part) for one in needs.values() for need in one if need is not None}
    groups = sorted(found_groups, key=lambda group: (group[1], group[0]))
    worth = Worth(groups, core_step, ranks, rests)
    place = {group: at for at, group in enumerate(groups)}
    takes_any = [all(needs[kind][i] is not None for kind in kinds) for i in range(len(asked))]
    for kind in kinds:
        here = _with_the_displaced(weights, takes_any, needs[kind], typical)
        worth.tables[kind] = _table(worth, place, here, len(cores))
        yield 20 * len(asked) + 2 * len(groups) * len(cores)
    worth.insisted = _insisted(asked, needs, typical, machines)
    return worth


def _coarse(need: Need | None) -> Need | None:
    """Shares by steps of one hundredth: hardly any sizes are left apart, and none is too small."""
    if need is None or need.part == WHOLE:
        return need
    return need._replace(part=min(WHOLE - 1, -(-need.part // 10) * 10))


def _table(worth: Worth, place: dict[tuple[int, int], int], needs: list[tuple[Need, int]], top: int) -> Table:
    counted = [[0] * (top + 1) for _ in worth.groups]
    by_core = [[0] * (top + 1) for _ in worth.groups]
    for need, weight in needs:
        group = place[need.gpus, need.part]
        rank = worth.ranks[need.cores_milli // worth.core_step]
        counted[group][rank] += weight
        if need.cores_milli:
            by_core[group][rank] += round(weight * FEED_SLACK * need.gpus * need.part * FINE / need.cores_milli)
    for rows in (counted, by_core):
        for row in rows:
            for rank in range(1, top + 1):
                row[rank] += row[rank - 1]
    return Table(counted, by_core)


def _weights(asked: list[Asked], typical: list[Need | None], turnover: float) -> list[int]:
    """Shares of all that is asked for. What needs no GPU counts in the sum."""
    total = sum(one.weight for one in asked) or 1.0
    plain = [one.weight / total for one in asked]
    several = [need is not None and need.gpus > 1 for need in typical]
    raised = [
        weight * (1 + turnover * (SEVERAL * need.gpus - 1)) if need is not None and need.gpus > 1 else weight
        for weight, need in zip(plain, typical, strict=True)
    ]
    before = sum(weight for weight, is_several in zip(plain, several, strict=True) if is_several)
    after = sum(weight for weight, is_several in zip(raised, several, strict=True) if is_several)
    if after:
        scale = max(before, min(after, SEVERAL_AT_MOST)) / after
        raised = [weight * scale if is_several else weight for weight, is_several in zip(raised, several, strict=True)]
    everything = sum(raised) or 1.0
    return [round(_PARTS * weight / everything) for weight in raised]


def _with_the_displaced(
    weights: list[int], takes_any: list[bool], here: list[Need | None], typical: list[Need | None]
) -> list[tuple[Need, int]]:
    """Who insists on another kind has the place there of one who takes any, and who then comes here: that counts as if
    nobody insisted. Else what nobody insists on would seem to be worth less, and would be filled and broken first."""
    found, elsewhere = list[tuple[Need, int]](), list[tuple[Need, int]]()
    for need, anywhere, weight in zip(here, typical, weights, strict=True):
        if need is not None:
            found.append((need, weight))
        elif anywhere is not None:
            elsewhere.append((anywhere, weight))
    displaced = min(1.0, sum(itertools.compress(weights, takes_any)) / (sum(weight for _, weight in elsewhere) or 1))
    return found + [(need, round(displaced * weight)) for need, weight in elsewhere]


def _insisted(
    asked: list[Asked],
    needs: dict[Kind, list[Need | None]],
    typical: list[Need | None],
    machines: Mapping[Machine, int],
) -> dict[Kind, float]:
    """Who takes several kinds, but not every, wants of each as much as there is of it beside the others."""
    capacity: dict[Kind, int] = {}
    for machine, number in machines.items():
        capacity[machine.kind] = capacity.get(machine.kind, 0) + number * machine.gpus
    amounts = [
        one.weight * need.gpus * need.part if need is not None else 0.0
        for one, need in zip(asked, typical, strict=True)
    ]
    everything = sum(amounts)
    found: dict[Kind, float] = {}
    for place, amount in enumerate(amounts):
        accepted = [kind for kind in needs if needs[kind][place] is not None] if amount else []
        if accepted and len(accepted) < len(needs):
            room = sum(capacity[kind] for kind in accepted)
            for kind in accepted:
                found[kind] = found.get(kind, 0.0) + amount / everything * capacity[kind] / room
    return found
