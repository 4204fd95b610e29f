"""Two other ways of choosing the worker, in the same core: first-fit, and fragmentation gradient descent.

FGD as its paper describes it ("Beware of Fragmentation", USENIX ATC'23): of the shapes that are typically asked for,
those GPUs of a machine are fragments that such a task could not use: all that is free where it does not fit the
machine, else what is free on devices that have too little for it. A task goes where that grows least, expected over the
shapes.
It is given the true mix of the trace; what it is not given is any knowledge of ours.
"""

import math
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from ostler.core.fleet import Fleet, Job, Worker
from ostler.core.holding import Grant
from ostler.core.index import bits
from ostler.core.placing.score import Score
from ostler.core.room import pick_devices
from ostler.domain.resources import Request
from ostler.sim.openb import Pod

WHOLE = 1000
Array = NDArray[np.float64]


class FirstFit:
    """The first machine in a fixed order, and on it the first device."""

    def __init__(self, rank: dict[str, int] | None = None) -> None:
        self._rank = rank
        """None: in the order of their names."""

    def __call__(self, fleet: Fleet, job: Job, among: int) -> tuple[Worker, Grant, Score]:
        names = (fleet.index.worker_at(number) for number in bits(among))
        worker = fleet.workers[min(names) if self._rank is None else min(names, key=self._rank.__getitem__)]
        return worker, first_devices(job.shape.request, worker), Score({})


def first_devices(request: Request, worker: Worker) -> Grant:
    if not request.gpu_milli:
        grant = pick_devices(request, worker.room)
        assert grant is not None
        return grant
    place = next(i for i, free in enumerate(worker.room.vram_mib) if free >= request.gpu_milli)
    return Grant((place,), request.gpu_milli)


class Gradient:
    """FGD. What a shape adds to the fragmentation of a machine is kept until that machine changes."""

    def __init__(self, pods: list[Pod], fleet: Fleet, typical: float = 0.95) -> None:
        self._fleet = fleet
        wanted = _typical(pods, typical)
        kinds = sorted({worker.offer.gpu_type.lower() for worker in fleet.workers.values()})
        self._kind_of = {kind: number for number, kind in enumerate(kinds)}
        self._chance = np.array([share for _, share in wanted])
        self._cores = np.array([request.cores_milli for request, _ in wanted], float)
        parts = sorted({request.gpu_milli or WHOLE for request, _ in wanted})
        self._part_of = np.array([parts.index(request.gpu_milli or WHOLE) for request, _ in wanted])
        gpus = [request.gpu_count or bool(request.gpu_milli) for request, _ in wanted]
        # A task without GPUs can use none of them; so can one that nothing is ever enough for.
        self._least = np.array([n * parts[p] if n else math.inf for n, p in zip(gpus, self._part_of, strict=True)])
        self._accepts = np.array([[request.accepts_type(kind) for request, _ in wanted] for kind in kinds])
        thousandths = np.arange(WHOLE + 1)[:, None]
        self._usable_of = np.where(thousandths >= np.array(parts), thousandths, 0).astype(float)
        size, devices = len(fleet.workers), max(len(worker.offer.devices) for worker in fleet.workers.values())
        self._free = np.zeros((size, devices), int)
        self._free_cores = np.zeros(size)
        self._kind = np.zeros(size, int)
        self._names = [fleet.index.worker_at(number) for number in range(size)]
        self._order = np.argsort(np.argsort(self._names))
        self._shapes: dict[tuple[int, int, int], int] = {}
        self._added = np.zeros((0, size))
        self._device = np.zeros((0, size), int)

    def __call__(self, fleet: Fleet, job: Job, among: int) -> tuple[Worker, Grant, Score]:
        request = job.shape.request
        fleet.index.machines.enter_states(-1)
        moved, fleet.index.machines.moved = fleet.index.machines.moved, 0
        changed = np.array(list(bits(moved)), int)
        for number in changed:
            self._read(number)
        if len(changed) and self._shapes:
            shapes = np.arange(len(self._shapes))
            self._compute(np.repeat(shapes, len(changed)), np.tile(changed, len(shapes)))
        key = (request.cores_milli, request.gpu_count, request.gpu_milli)
        if key not in self._shapes:
            self._shapes[key] = len(self._shapes)
            self._added = np.vstack((self._added, np.zeros((1, len(self._kind)))))
            self._device = np.vstack((self._device, np.zeros((1, len(self._kind)), int)))
            self._compute(np.full(len(self._kind), self._shapes[key]), np.arange(len(self._kind)))
        numbers = np.array(list(bits(among)), int)
        added = self._added[self._shapes[key], numbers]
        best = numbers[added == added.min()]
        number = int(best[self._order[best].argmin()])
        worker = fleet.workers[self._names[number]]
        if not request.gpu_milli:
            return worker, first_devices(request, worker), Score({})
        return worker, Grant((int(self._device[self._shapes[key], number]),), request.gpu_milli), Score({})

    def _read(self, number: int) -> None:
        worker = self._fleet.workers[self._names[number]]
        self._free[number, : len(worker.room.vram_mib)] = worker.room.vram_mib
        self._free_cores[number] = worker.room.cores_milli
        self._kind[number] = self._kind_of[worker.offer.gpu_type.lower()]

    def _compute(self, shapes: NDArray[np.int_], at: NDArray[np.int_]) -> None:
        """For each pair of a shape and a machine: on which device it adds least, and how much."""
        cores, gpus, part = np.array(list(self._shapes))[shapes].T
        self._added[shapes, at] = np.inf
        fits = (self._free_cores[at] >= cores) & ((self._free[at] == WHOLE).sum(1) >= gpus)
        shapes, at, cores, gpus, part = (one[fits] for one in (shapes, at, cores, gpus, part))
        free = self._free[at]
        usable = self._usable_of[free].sum(1)
        before = self._fragments(usable, free.sum(1), self._free_cores[at], self._kind[at])
        could = (free >= part[:, None]) & (part > 0)[:, None]
        for place in range(1, free.shape[1]):  # of devices with as much free, the first will do
            could[:, place] &= ~(free[:, :place] == free[:, place : place + 1]).any(1)
        pair, place = np.nonzero(could)
        whole = np.nonzero(part == 0)[0]
        pairs, places = np.concatenate((pair, whole)), np.concatenate((place, np.zeros_like(whole)))
        held = np.concatenate((free[pair, place], np.where(gpus[whole] > 0, WHOLE, 0)))
        after = np.concatenate((free[pair, place] - part[pair], np.zeros_like(whole)))
        number = np.maximum(gpus[pairs], 1)[:, None]
        room = usable[pairs] - number * (self._usable_of[held] - self._usable_of[after])
        total = free.sum(1)[pairs] - number[:, 0] * (held - after)
        at_pair = at[pairs]
        left = self._free_cores[at_pair] - cores[pairs]
        grown = _quantised(self._fragments(room, total, left, self._kind[at_pair]) - before[pairs])
        order = np.lexsort((-places, -grown))
        self._added[shapes[pairs][order], at_pair[order]] = grown[order]
        self._device[shapes[pairs][order], at_pair[order]] = places[order]

    def _fragments(self, usable: Array, free: Array, cores: Array, kind: NDArray[np.int_]) -> Array:
        """Expected thousandths of GPUs that a typical task could not use."""
        room = usable[:, self._part_of]
        fits = (room >= self._least) & (cores[:, None] >= self._cores) & self._accepts[kind]
        fragments: Array = free - (np.where(fits, room, 0.0) * self._chance).sum(1)
        return fragments


def _quantised(grown: Array) -> Array:
    """The paper's scheduler scores in whole numbers from 0 to 100, by a sigmoid of whole GPUs."""
    return -np.floor(100 / (1 + np.exp(grown / WHOLE)))


def _typical(pods: list[Pod], covered: float) -> list[tuple[Request, float]]:
    """The shapes that make up so much of all pods, by how often they are asked for."""
    counts: Counter[Request] = Counter()
    for pod in pods:
        asked = pod.request
        counts[
            Request(
                gpu_count=asked.gpu_count,
                gpu_milli=asked.gpu_milli,
                gpu_type=asked.gpu_type,
                cores_milli=asked.cores_milli,
            )
        ] += 1
    kept, total = [], 0
    for request, count in sorted(counts.items(), key=lambda one: -one[1]):
        if total >= math.ceil(covered * len(pods)):
            break
        kept.append((request, count))
        total += count
    return [(request, count / total) for request, count in kept]
