"""Which shapes fit which workers, as bits kept current per event.

A shape is an interned request and a worker is a machine; each has a bit. `workers_of` says where a shape may run and
`fits_of` what a worker could take, both made of a few numbers that the axes keep, so that no decision walks over the
queue or the fleet.

After a pass nothing is both pending and placeable. So the next has to look only at workers that have gained room since
and at shapes of which something has begun to wait: `candidates`. match.py stays the truth; check() proves that the
bits agree with it.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from ostler.core.axes import Axis, Gpus, Wanted, gpu_need
from ostler.core.holding import NO_GPUS, Grant, Holding, holding
from ostler.core.machines import Machines, State
from ostler.core.match import unmet_static
from ostler.core.worker import Worker
from ostler.domain.resources import POOLS, Offer, Request


def bits(mask: int) -> Iterator[int]:
    """Positions of the set bits, highest first: that end of a long integer is the cheap one."""
    while mask:
        position = mask.bit_length() - 1
        yield position
        mask ^= 1 << position


def positions(mask: int) -> list[int]:
    """The same of a mask with many of them, lowest first."""
    return [place for place, digit in enumerate(reversed(bin(mask))) if digit == "1"]


def gpu_profile(request: Request) -> Request:
    """All of a request that the worth of room depends on."""
    return Request(
        gpu_count=request.gpu_count,
        gpu_type=request.gpu_type,
        backend=request.backend,
        vram_mib=request.vram_mib,
        gpu_milli=request.gpu_milli,
        cores_milli=request.cores_milli,
        prefers_cuda=request.prefers_cuda,
    )


class StaticClass:
    """Shapes that agree on everything no ending of a task changes: backend, GPU type, labels, hosts."""

    __slots__ = ("bit", "probe", "shapes", "workers")

    def __init__(self, probe: Request, bit: int) -> None:
        self.probe = probe
        self.bit = bit
        self.shapes = 0
        self.workers = 0
        """Those that nothing but their room and their health keeps from taking one of them."""


class Shape:
    __slots__ = (
        "bare",
        "bit",
        "cores_milli",
        "jobs",
        "lately",
        "memory_mib",
        "nodes",
        "pool",
        "profile",
        "request",
        "shares_gpu",
        "sid",
        "static",
        "uses_gpu",
        "wanted",
    )

    def __init__(self, sid: int, request: Request, static: StaticClass, wanted: Wanted) -> None:
        self.sid = sid
        self.bit = 1 << sid
        self.request = request
        self.static = static
        self.wanted = wanted
        self.jobs = 0
        """Live jobs of this shape; a shape without any gives its number back."""
        self.lately = 0.0
        """Those of it that have left, the older the less, in the unit of mix.py."""
        self.profile = gpu_profile(request)
        self.nodes = request.nodes
        self.pool = request.pool
        self.cores_milli = request.cores_milli
        self.memory_mib = request.memory_mib
        self.uses_gpu = request.uses_gpu
        self.shares_gpu = request.shares_gpu
        self.bare = holding(request, NO_GPUS)
        """What a task takes beside GPUs."""

    def holding(self, grant: Grant) -> Holding:
        """What a task takes with these."""
        if not grant.devices:
            return self.bare
        return Holding(self.cores_milli, self.memory_mib, self.pool, grant)


def _static_part(request: Request) -> tuple[object, ...]:
    """All of a request that match.unmet_static looks at."""
    closed = request.cuda_first_s > 0
    hosts = (request.model, request.allowed_hosts, request.denied_hosts)
    return (request.backend, request.gpu_type, request.labels, *hosts, closed, request.attended, request.extended)


def _facts(offer: Offer) -> tuple[object, ...]:
    """All of an offer that match.unmet_static looks at."""
    gpus = (offer.has_cuda, offer.gpu_type, offer.gpu_names)
    hosts = (offer.hostname, offer.allow_jobs, offer.deny_jobs)
    return (offer.backend, *gpus, offer.labels, *hosts, offer.claims, offer.is_plain)


class Indexed:
    """What the index keeps on a worker."""

    __slots__ = ("bit", "classes", "counted", "facts", "fits", "number", "serves", "worker")

    def __init__(self, number: int) -> None:
        self.worker: Worker | None = None
        self.facts: tuple[object, ...] = ()
        self.number = number
        self.bit = 1 << number
        self.classes = 0
        """The static classes whose shapes it could run."""
        self.fits = 0
        """The shapes that it could take, of those that there were when it last changed."""
        self.serves = 0
        """The pools in which it has a slot to give, a bit for each, and those in which it counts as one that has."""
        self.counted = 0


MAX_CLASSES_KEPT: Final = 1024
FEW_GAINED: Final = 8
"""Workers of which it is asked one by one whether they have gained room for a shape."""
MAX_IDLE_SHAPES = 2048
"""Shapes of no job that are kept, because the next job is likely to have one of them."""


class Index:
    def __init__(self) -> None:
        self.changes = 0
        """How often any worker's room, slots or health has changed."""
        self.held: dict[str, int] = {}
        """Of each worker that is held for a job: the shapes that it has room for. It counts nowhere else."""
        self.stale: dict[str, None] = {}
        """Those of them that have changed since somebody looked."""
        self.unasked: dict[str, None] = {}
        """Those of them that have changed since the end of a pass."""
        self._shapes: dict[Request, Shape] = {}
        self._by_sid: dict[int, Shape] = {}
        self._free_sids: list[int] = []
        self._workers: dict[str, Indexed] = {}
        self._classes: dict[tuple[object, ...], StaticClass] = {}
        self._free_classes: list[int] = []
        self._static: dict[int, int] = {}
        """By static classes, their shapes: of those that workers are of, kept current."""
        self._cores = Axis()
        self._memory = Axis()
        self._gpus = Gpus()
        self.gangs = 0
        """The shapes that need several workers at once."""
        self._pools = dict.fromkeys(POOLS, 0)
        self.open_workers = 0
        self._serving = dict.fromkeys(POOLS, 0)
        """The workers that are open, not held, and have a slot in each pool; but for the uncounted."""
        self._uncounted: dict[int, Indexed] = {}
        self._open = 0
        """Shapes of which something has begun to wait, or waited at the end of a pass though there was room."""
        self._gained: dict[int, Indexed] = {}
        """The workers that could take more than before, by number."""
        self._gains: dict[int, int] = {}
        """How many of them could take what."""
        self._short = 0
        """Shapes for which there were too few workers when that was last looked at."""
        self.names: list[str] = []
        """Of the workers, by their numbers."""
        self.machines = Machines()
        self.uncleared: dict[int, int] = {}
        """By priority, the shapes for which no end of others would make room on any worker that is not among those."""
        self.restless: dict[str, None] = {}

    # Shapes

    def shape(self, request: Request, workers: Iterable[Worker]) -> Shape:
        """The shape of this request; a new one is entered into the axes, and compared with every worker only where it
        is the first of its static class."""
        known = self._shapes.get(request)
        if known is not None:
            return known
        sid = self._free_sids.pop() if self._free_sids else len(self._by_sid)
        static = self._static_class(request, workers)
        shape = Shape(sid, request, static, self._gpus.change(gpu_need(request), 1 << sid))
        self._shapes[request] = self._by_sid[sid] = shape
        self._change_needs(shape)
        for name in self.held:
            indexed = self._workers[name]
            assert indexed.worker is not None
            self._refit(indexed, indexed.worker, self._full(indexed.worker))
        return shape

    def _static_class(self, request: Request, workers: Iterable[Worker]) -> StaticClass:
        key = _static_part(request)
        static = self._classes.get(key)
        if static is None:
            number = self._free_classes.pop() if self._free_classes else len(self._classes)
            static = self._classes[key] = StaticClass(request, 1 << number)
            for worker in workers:
                if not unmet_static(request, worker.id, worker.room.offer):
                    indexed = self._workers[worker.id]
                    shapes = self._could_run(indexed.classes)
                    indexed.classes |= static.bit
                    self._static[indexed.classes] = shapes
                    static.workers |= indexed.bit
        return static

    def left(self, shape: Shape) -> None:
        """A job of this shape is gone, or is of another shape now."""
        shape.jobs -= 1
        if not shape.jobs and len(self._shapes) > MAX_IDLE_SHAPES:
            self._drop(shape)

    def _drop(self, shape: Shape) -> None:
        """Nothing of this shape is left: its number may be used again."""
        for worker_id in self.held:
            self.held[worker_id] &= ~shape.bit
        for priority in self.uncleared:
            self.uncleared[priority] &= ~shape.bit
        for indexed in self._workers.values():
            if indexed.fits & shape.bit:
                self._set_fits(indexed, indexed.fits ^ shape.bit)
        self._open &= ~shape.bit
        self._short &= ~shape.bit
        self._gpus.change(gpu_need(shape.request), shape.bit)
        self._change_needs(shape)
        if not shape.static.shapes:
            self._drop_class(shape.static)
        del self._shapes[shape.request], self._by_sid[shape.sid]
        self._free_sids.append(shape.sid)

    def _drop_class(self, static: StaticClass) -> None:
        for number in bits(static.workers):
            self._workers[self.names[number]].classes ^= static.bit
        del self._classes[_static_part(static.probe)]
        self._free_classes.append(static.bit.bit_length() - 1)

    def _change_needs(self, shape: Shape) -> None:
        """Enter a shape into the axes, or remove it: the same toggles both ways."""
        self._cores.change(shape.cores_milli, shape.bit)
        self._memory.change(shape.memory_mib, shape.bit)
        self._pools[shape.pool] ^= shape.bit
        if shape.nodes > 1:
            self.gangs ^= shape.bit
        shape.static.shapes ^= shape.bit
        for classes in self._static:
            if classes & shape.static.bit:
                self._static[classes] ^= shape.bit

    def shape_at(self, sid: int) -> Shape:
        return self._by_sid[sid]

    def idle_shapes(self) -> int:
        return sum(shape.jobs == 0 for shape in self._shapes.values())

    def shapes(self) -> list[Shape]:
        return list(self._shapes.values())

    # Where, and what

    def workers_of(self, shape: Shape) -> int:
        """The workers that could take one task of this shape now."""
        if self._uncounted:
            self._count()
        found = shape.static.workers & self._serving[shape.pool] & self._gpus.able(shape.wanted)
        if found:
            found &= self._cores.at_least(shape.cores_milli)
            found &= self._memory.at_least(shape.memory_mib)
        return found

    def _count(self) -> None:
        for indexed in self._uncounted.values():
            changed, indexed.counted = indexed.serves ^ indexed.counted, indexed.serves
            for place, pool in enumerate(POOLS):
                if changed >> place & 1:
                    self._serving[pool] ^= indexed.bit
        self._uncounted.clear()

    def gained_for(self, shape: Shape) -> list[Worker] | None:
        """The same as `workers_of` for a shape of which some waited when the last pass was over: nothing of it could be
        placed then, so that now it can be on workers that have gained room since, and on no others. None: that is not
        known."""
        if shape.bit & self._open or shape.nodes > 1 or len(self._gained) > FEW_GAINED:
            return None
        return [one.worker for one in self._gained.values() if one.fits & shape.bit and one.worker is not None]

    def is_placeable(self, shape: Shape) -> bool:
        if shape.nodes > 1:
            return self.workers_of(shape).bit_count() >= shape.nodes
        for fits in self._gains:
            if fits & shape.bit:
                return True
        return self.workers_of(shape) > 0

    def candidates(self) -> int:
        """Every shape that waits and could be placed is among these."""
        found = self._open
        for fits in self._gains:
            found |= fits
        return found & ~self._short

    def begins_to_wait(self, shape: Shape) -> None:
        """What came before, nobody has looked whether there is room for it."""
        self._open |= shape.bit
        self._short &= ~shape.bit

    def has_no_room_for(self, shape: Shape) -> None:
        """Somebody has looked: there is none until a worker gains some."""
        self._short |= shape.bit

    def pass_over(self, pending: int) -> None:
        """All that could be placed has been. What waits all the same though there is room is kept back by something
        else, and is looked at again in the next pass."""
        self._open = self.candidates() & pending
        self._gained.clear()
        self._gains.clear()
        self.unasked.clear()

    # Workers

    def add_worker(self, worker_id: str) -> None:
        number = len(self.names)
        self._workers[worker_id] = Indexed(number)
        self.names.append(worker_id)
        self._cores.add_worker()
        self._memory.add_worker()
        self._gpus.add_worker()
        self.machines.add(worker_id)

    def offer_changed(self, worker: Worker) -> None:
        """Look at everything about this worker anew that may have changed."""
        indexed, offer = self._workers[worker.id], worker.room.offer
        facts = _facts(offer)
        if facts != indexed.facts:
            indexed.facts, indexed.classes = facts, 0
            for static in self._classes.values():
                static.workers &= ~indexed.bit
                if not unmet_static(static.probe, worker.id, offer):
                    static.workers |= indexed.bit
                    indexed.classes |= static.bit
        self.machines.offered(indexed.number, offer)
        self.room_changed(worker)

    def room_changed(self, worker: Worker) -> None:
        """Its room, slots or health changed: what it could take is other than before."""
        self.changes += 1
        self.restless[worker.id] = None
        indexed = self._workers[worker.id]
        indexed.worker = worker
        room, number, bit = worker.room, indexed.number, indexed.bit
        self._cores.set_free(number, max(0, room.cores_milli))
        self._memory.set_free(number, room.free_memory())
        self._gpus.set_room(number, room)
        is_open = worker.is_open
        if bool(self.open_workers & bit) != is_open:
            self.open_workers ^= bit
        is_free = is_open and worker.id not in self.held
        self.machines.room_changed(number, room, is_free)
        full = serves = 0
        for place, pool in enumerate(POOLS):
            if worker.free_slots(pool) < 1:
                full |= self._pools[pool]
            elif is_free:
                serves |= 1 << place
        if serves != indexed.serves:
            indexed.serves = serves
            self._uncounted[number] = indexed
        self._refit(indexed, worker, full)

    def _refit(self, indexed: Indexed, worker: Worker, full: int) -> None:
        """What a worker could take now; if that is more than before, the next pass looks at it."""
        fits = self._has_room_for(indexed, worker, full) if worker.is_open else 0
        if worker.id in self.held:
            self.held[worker.id] = fits
            self.stale[worker.id] = self.unasked[worker.id] = None
            fits = 0
        self._set_fits(indexed, fits)

    def _set_fits(self, indexed: Indexed, fits: int) -> None:
        before, indexed.fits = indexed.fits, fits
        gained = fits & ~before
        self._short &= ~gained
        if indexed.number in self._gained:
            self._count_gain(before, -1)
            self._count_gain(fits, 1)
        elif gained:
            self._gained[indexed.number] = indexed
            self._count_gain(fits, 1)

    def _count_gain(self, fits: int, sign: int) -> None:
        self._gains[fits] = self._gains.get(fits, 0) + sign
        if not self._gains[fits]:
            del self._gains[fits]

    def hold(self, worker: Worker) -> None:
        """It is free for nobody until it is let go; what it has room for is told apart."""
        self.held[worker.id] = 0
        self.room_changed(worker)

    def let_go(self, worker: Worker) -> None:
        del self.held[worker.id]
        self.stale.pop(worker.id, None)
        self.unasked.pop(worker.id, None)
        self.room_changed(worker)

    def could_run(self, worker_id: str, shape: Shape) -> bool:
        """Nothing but its room and its health keeps this shape from the worker."""
        return bool(self._workers[worker_id].classes & shape.static.bit)

    def could_run_some_day(self, shape: Shape) -> int:
        """The open workers from which nothing but what runs there keeps this shape, by what is quickly seen."""
        return self.open_workers & shape.static.workers & self.machines.large_enough_for(shape.request)

    def could_run_there(self, worker_id: str) -> int:
        """All shapes of which that is true."""
        return self._could_run(self._workers[worker_id].classes)

    def worker_at(self, number: int) -> str:
        return self.names[number]

    def state_of(self, worker_id: str) -> State:
        return self.machines.state_of(self._workers[worker_id].number)

    def bit_of(self, worker_id: str) -> int:
        return self._workers[worker_id].bit

    def claimable(self, worker: Worker) -> int:
        """The shapes of which a worker that is not given work could have one, now that it asks."""
        return self._has_room_for(self._workers[worker.id], worker, self._full(worker))

    def fits_of(self, worker_id: str) -> int:
        """The shapes that it could be given now."""
        indexed = self._workers[worker_id]
        worker = indexed.worker
        if worker is None or not worker.is_open or worker_id in self.held:
            return 0
        return self._has_room_for(indexed, worker, self._full(worker))

    def would_fit(self, worker: Worker, leaving: Holding) -> int:
        """The shapes of which it could take one, at the most, if what this holds were free: no device is."""
        indexed, room = self._workers[worker.id], worker.room
        fits = self._could_run(indexed.classes) & self._cores.within(max(0, room.cores_milli + leaving.cores_milli))
        fits &= self._memory.within(room.free_memory() + leaving.memory_mib)
        for pool, shapes in self._pools.items():
            if shapes and pool != leaving.pool and worker.free_slots(pool) < 1:
                fits &= ~shapes
        return fits & self._gpus.served_by(indexed.number)

    def _full(self, worker: Worker) -> int:
        """The shapes for which it has no slot."""
        found = 0
        for pool, shapes in self._pools.items():
            if shapes and worker.free_slots(pool) < 1:
                found |= shapes
        return found

    def _has_room_for(self, indexed: Indexed, worker: Worker, full: int) -> int:
        fits = self._could_run(indexed.classes) & ~full
        if not fits:
            return 0
        room = worker.room
        fits &= self._cores.within(max(0, room.cores_milli))
        fits &= self._memory.within(room.free_memory())
        return fits & self._gpus.served_by(indexed.number)

    def _could_run(self, classes: int) -> int:
        found = self._static.get(classes)
        if found is None:
            if len(self._static) > MAX_CLASSES_KEPT:
                self._static.clear()
            found = 0
            for static in self._classes.values():
                if classes & static.bit:
                    found |= static.shapes
            self._static[classes] = found
        return found
