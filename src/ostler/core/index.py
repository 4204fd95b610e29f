"""Which shapes fit which workers, as bits kept current per event.

A shape is an interned request and a worker is a machine; each has a bit. `worker.fits` says which shapes it could
take now and `shape.workers` the same the other way round, so that "where may this run" and "what may run here" are
single numbers and no decision walks over the queue or the fleet. `placeable` holds the shapes that at least one
worker could take: after a pass nothing is both pending and placeable. match.py stays the truth; check() proves that
the bits agree with it.
"""

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator
from typing import Protocol

from ostler.core.match import unmet_static
from ostler.core.placing.worth import Machine, machine_of
from ostler.core.room import Room, pick_devices
from ostler.domain.resources import POOLS, Offer, Request


def bits(mask: int) -> Iterator[int]:
    """Positions of the set bits, highest first: that end of a long integer is the cheap one."""
    while mask:
        position = mask.bit_length() - 1
        yield position
        mask ^= 1 << position


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


class Shape:
    __slots__ = ("bit", "jobs", "lately", "profile", "request", "sid", "workers")

    def __init__(self, sid: int, request: Request) -> None:
        self.sid = sid
        self.bit = 1 << sid
        self.request = request
        self.workers = 0
        """The workers that could take one task of this shape now."""
        self.jobs = 0
        """Live jobs of this shape; a shape without any gives its number back."""
        self.lately = 0.0
        """Those of it that have left, the older the less, in the unit of mix.py."""
        self.profile = gpu_profile(request)


class Axis:
    """Shapes by how much they need of one amount: `within(free)` are those that need no more than that."""

    __slots__ = ("_masks", "_needs", "_within")

    def __init__(self) -> None:
        self._needs: list[int] = []
        self._masks: dict[int, int] = {}
        self._within: list[int] | None = None
        """The shapes that need no more than each of the needs; None: shapes came or went since it was made."""

    def change(self, need: int, bit: int) -> None:
        """Add a shape's bit, or take it away again."""
        if need not in self._masks:
            insort(self._needs, need)
            self._masks[need] = 0
        self._masks[need] ^= bit
        if not self._masks[need]:
            del self._masks[need]
            self._needs.remove(need)
        self._within = None

    def within(self, free: int) -> int:
        if self._within is None:
            self._within = [0]
            for need in self._needs:
                self._within.append(self._within[-1] | self._masks[need])
        return self._within[bisect_right(self._needs, free)]


class StaticClass:
    """Shapes that agree on everything no ending of a task changes: backend, GPU type, labels, hosts."""

    __slots__ = ("probe", "shapes", "workers")

    def __init__(self, probe: Request) -> None:
        self.probe = probe
        self.shapes = 0
        self.workers = 0
        """Those that nothing but their room and their health keeps from taking one of them."""


def _static_part(request: Request) -> tuple[object, ...]:
    """All of a request that match.unmet_static looks at."""
    closed = request.cuda_first_s > 0
    hosts = (request.model, request.allowed_hosts, request.denied_hosts)
    return (request.backend, request.gpu_type, request.labels, *hosts, closed, request.attended)


def _facts(offer: Offer) -> tuple[object, ...]:
    """All of an offer that match.unmet_static looks at."""
    lists = (offer.allow_jobs, offer.deny_jobs)
    return (offer.backend, offer.has_cuda, offer.gpu_type, offer.labels, offer.hostname, *lists, offer.claims)


class WorkerState:
    """Workers of one kind with the same free room: the scheduler scores one of them for all."""

    __slots__ = ("ids", "key", "workers")

    def __init__(self, key: tuple[object, ...]) -> None:
        self.key = key
        self.workers = 0
        self.ids: list[str] = []
        """In order: ties between workers go to the first."""


class Indexed:
    """What the index keeps on a worker."""

    __slots__ = ("bit", "facts", "fits", "machine", "number", "room", "state", "static")

    def __init__(self, number: int) -> None:
        self.room: Room | None = None
        self.machine: Machine | None = None
        self.facts: tuple[object, ...] = ()
        self.number = number
        self.bit = 1 << number
        self.static = 0
        self.fits = 0
        self.state: WorkerState | None = None


class Candidate(Protocol):
    """What the index needs to know of a worker."""

    @property
    def id(self) -> str: ...
    @property
    def room(self) -> Room: ...
    @property
    def is_open(self) -> bool: ...
    def free_slots(self, pool: str) -> int: ...


_GPU_CACHE_LIMIT = 500_000
"""Devices in the keys: what machines see free differs from one claim to the next."""
_GPU_CACHE_WALKED = 4096
"""Entries that are brought up to date for a new shape; more are found anew when they are needed."""
MAX_IDLE_SHAPES = 2048
"""Shapes of no job that are kept, because the next job is likely to have one of them."""


class Index:
    def __init__(self) -> None:
        self.placeable = 0
        self.changes = 0
        """How often any worker's room, slots or health has changed."""
        self.held: dict[str, int] = {}
        """Of each worker that is held for a job: the shapes that it has room for. It counts nowhere else."""
        self.stale: dict[str, None] = {}
        """Those of them that have changed since somebody looked."""
        self._shapes: dict[Request, Shape] = {}
        self._by_sid: dict[int, Shape] = {}
        self._free_sids: list[int] = []
        self._workers: dict[str, Indexed] = {}
        self._classes: dict[tuple[object, ...], StaticClass] = {}
        self._cores = Axis()
        self._memory = Axis()
        self._gpu_needs: dict[tuple[int, int, int, bool], int] = {}
        self._gpu_cache: dict[tuple[object, ...], int] = {}
        self._gpu_cached = 0
        self._pools = dict.fromkeys(POOLS, 0)
        self._serving = dict.fromkeys(POOLS, 0)
        """The workers that are open and have a slot in each pool."""
        self._states: dict[tuple[object, ...], WorkerState] = {}
        self.names: list[str] = []
        """Of the workers, by their numbers."""
        self.without_gpu = 0
        self.machines: dict[Machine, int] = {}
        """How many there are of each kind that has GPUs."""
        self.machine_changes = 0
        """How often a kind came or went."""
        self.moved = 0
        """The workers that have entered another state since whoever reads this took note of it."""
        self.uncleared: dict[int, int] = {}
        """By priority, the shapes for which no end of others would make room on any worker that is not among those."""
        self.restless: dict[str, None] = {}

    # Shapes

    def shape(self, request: Request, workers: Iterable[Candidate]) -> Shape:
        """The shape of this request; a new one is compared with every worker, once."""
        known = self._shapes.get(request)
        if known is not None:
            return known
        shape = Shape(self._free_sids.pop() if self._free_sids else len(self._by_sid), request)
        self._shapes[request] = shape
        self._by_sid[shape.sid] = shape
        self._change_needs(shape)
        static = self._classes[_static_part(request)]
        if static.shapes == shape.bit:
            for worker in workers:
                if not unmet_static(request, worker.id, worker.room.offer):
                    static.workers |= self.bit_of(worker.id)
        self._compare(shape, static.workers)
        return shape

    def _compare(self, shape: Shape, workers: int) -> None:
        """Find out which of these workers, by their states, have room for a new shape."""
        bit, serving = shape.bit, self._serving[shape.request.pool]
        for state in self._states.values():
            able = state.workers & workers
            here = [self._workers[name] for name in state.ids] if able else []
            if able != state.workers:
                here = [indexed for indexed in here if indexed.bit & able]
            for indexed in here:
                indexed.static |= bit
            if able & serving and here[0].room is not None and _has_room(shape.request, here[0].room):
                for indexed in here:
                    if indexed.bit & serving:
                        indexed.fits |= bit
                shape.workers |= able & serving
        for name in self.held:
            indexed = self._workers[name]
            if indexed.fits & bit:
                self.held[name] |= bit
                indexed.fits ^= bit
                shape.workers ^= indexed.bit
        if shape.workers.bit_count() >= shape.request.nodes:
            self.placeable |= bit

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
            indexed.static &= ~shape.bit
            if indexed.fits & shape.bit:
                self._flip(shape, indexed)
        self._change_needs(shape)
        del self._shapes[shape.request]
        del self._by_sid[shape.sid]
        self._free_sids.append(shape.sid)

    def shape_at(self, sid: int) -> Shape:
        return self._by_sid[sid]

    def idle_shapes(self) -> int:
        return sum(shape.jobs == 0 for shape in self._shapes.values())

    def shapes(self) -> list[Shape]:
        return list(self._shapes.values())

    def _change_needs(self, shape: Shape) -> None:
        """Enter a shape into the axes, or remove it: the same toggles both ways."""
        request = shape.request
        self._cores.change(request.cores_milli, shape.bit)
        self._memory.change(request.memory_mib, shape.bit)
        self._pools[request.pool] ^= shape.bit
        need = (request.gpu_count, request.vram_mib, request.gpu_milli, request.prefers_cuda)
        alike = self._gpu_needs.get(need, 0)
        self._gpu_needs[need] = alike ^ shape.bit
        if not self._gpu_needs[need]:
            del self._gpu_needs[need]
        if alike and not alike & shape.bit and len(self._gpu_cache) <= _GPU_CACHE_WALKED:
            self._served_too(alike, shape.bit)
        else:
            self._forget_gpus()
        key = _static_part(request)
        static = self._classes.setdefault(key, StaticClass(request))
        static.shapes ^= shape.bit
        if not static.shapes:
            del self._classes[key]

    def _served_too(self, alike: int, bit: int) -> None:
        """Wherever the shapes with the same need for GPUs are served, a new one is."""
        for key, served in self._gpu_cache.items():
            if served & alike:
                self._gpu_cache[key] = served | bit

    # Workers

    def add_worker(self, worker_id: str) -> None:
        number = len(self.names)
        self._workers[worker_id] = Indexed(number)
        self.names.append(worker_id)

    def offer_changed(self, worker: Candidate) -> None:
        """Look at everything about this worker anew that may have changed."""
        indexed, facts = self._workers[worker.id], _facts(worker.room.offer)
        if facts != indexed.facts:
            indexed.facts, indexed.static = facts, 0
            for static in self._classes.values():
                static.workers &= ~indexed.bit
                if not unmet_static(static.probe, worker.id, worker.room.offer):
                    static.workers |= indexed.bit
                    indexed.static |= static.shapes
        self._count_machine(indexed, machine_of(worker.room.offer))
        self.without_gpu &= ~indexed.bit
        if not worker.room.offer.devices:
            self.without_gpu |= indexed.bit
        self.room_changed(worker)

    def _count_machine(self, indexed: Indexed, machine: Machine | None) -> None:
        if machine == indexed.machine:
            return
        for one, sign in ((indexed.machine, -1), (machine, 1)):
            if one is not None:
                number = self.machines.get(one, 0) + sign
                self.machine_changes += number in (0, sign)
                self.machines[one] = number
                if not number:
                    del self.machines[one]
        indexed.machine = machine

    def room_changed(self, worker: Candidate) -> None:
        """Its room, slots or health changed: flip the bits of the shapes for which that matters."""
        self.changes += 1
        self.restless[worker.id] = None
        indexed = self._workers[worker.id]
        for sid in bits(self._fits(indexed, worker) ^ indexed.fits):
            self._flip(self._by_sid[sid], indexed)
        for pool, serving in self._serving.items():
            if bool(serving & indexed.bit) != (worker.is_open and worker.free_slots(pool) >= 1):
                self._serving[pool] ^= indexed.bit
        self._enter_state(worker.id, indexed, worker.room)

    def hold(self, worker: Candidate) -> None:
        """It is free for nobody until it is let go; what it has room for is told apart."""
        self.held[worker.id] = 0
        self.room_changed(worker)

    def let_go(self, worker: Candidate) -> None:
        del self.held[worker.id]
        self.stale.pop(worker.id, None)
        self.room_changed(worker)

    def could_run(self, worker_id: str, shape: Shape) -> bool:
        """Nothing but its room and its health keeps this shape from the worker."""
        return bool(self._workers[worker_id].static & shape.bit)

    def worker_at(self, number: int) -> str:
        return self.names[number]

    def state_of(self, worker_id: str) -> WorkerState:
        state = self._workers[worker_id].state
        assert state is not None
        return state

    def fits_of(self, worker_id: str) -> int:
        return self._workers[worker_id].fits

    def bit_of(self, worker_id: str) -> int:
        return self._workers[worker_id].bit

    def claimable(self, worker: Candidate) -> int:
        """The shapes of which a worker that is not given work could have one, now that it asks."""
        return self._has_room_for(self._workers[worker.id], worker)

    def _fits(self, indexed: Indexed, worker: Candidate) -> int:
        fits = self._has_room_for(indexed, worker) if worker.is_open else 0
        if worker.id not in self.held:
            return fits
        self.held[worker.id] = fits
        self.stale[worker.id] = None
        return 0

    def _has_room_for(self, indexed: Indexed, worker: Candidate) -> int:
        if not indexed.static:
            return 0
        room = worker.room
        fits = indexed.static & self._cores.within(max(0, room.cores_milli))
        fits &= self._memory.within(room.free_memory())
        for pool, shapes in self._pools.items():
            if shapes and worker.free_slots(pool) < 1:
                fits &= ~shapes
        return fits & self._gpu_served(room) if fits else 0

    def _gpu_served(self, room: Room) -> int:
        key = (room.offer.has_cuda, room.device_state())
        served = self._gpu_cache.get(key)
        if served is None:
            served = 0
            for (count, vram, part, prefers), shapes in self._gpu_needs.items():
                probe = Request(gpu_count=count, vram_mib=vram, gpu_milli=part, prefers_cuda=prefers)
                if pick_devices(probe, room) is not None:
                    served |= shapes
            self._gpu_cached += 1 + len(room.users)
            if self._gpu_cached > _GPU_CACHE_LIMIT:
                self._forget_gpus()
            self._gpu_cache[key] = served
        return served

    def _forget_gpus(self) -> None:
        self._gpu_cache.clear()
        self._gpu_cached = 0

    def _flip(self, shape: Shape, indexed: Indexed) -> None:
        indexed.fits ^= shape.bit
        shape.workers ^= indexed.bit
        nodes = shape.request.nodes
        if shape.workers if nodes == 1 else shape.workers.bit_count() >= nodes:
            self.placeable |= shape.bit
        else:
            self.placeable &= ~shape.bit

    def _enter_state(self, worker_id: str, indexed: Indexed, room: Room) -> None:
        offer = room.offer
        indexed.room = room
        kind = (offer.backend, offer.gpu_type, offer.cores_milli, offer.memory_mib, offer.devices, offer.available_mib)
        key = (*kind, *room.state())
        if indexed.state is not None:
            if indexed.state.key == key:
                return
            indexed.state.workers ^= indexed.bit
            indexed.state.ids.remove(worker_id)
            if not indexed.state.workers:
                del self._states[indexed.state.key]
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = WorkerState(key)
        state.workers |= indexed.bit
        self.moved |= indexed.bit
        insort(state.ids, worker_id)
        indexed.state = state


def _has_room(request: Request, room: Room) -> bool:
    """What match.unmet_room finds no reason against."""
    if request.cores_milli > max(0, room.cores_milli) or request.memory_mib > room.free_memory():
        return False
    if request.gpu_count and not request.vram_mib:
        return request.gpu_count <= room.free_devices()
    return not request.uses_gpu or pick_devices(request, room) is not None
