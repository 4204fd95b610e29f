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

from ostler.core.match import unmet_room, unmet_static
from ostler.core.room import Room, pick_devices
from ostler.domain.resources import POOLS, Offer, Request


def bits(mask: int) -> Iterator[int]:
    """Positions of the set bits, highest first: that end of a long integer is the cheap one."""
    while mask:
        position = mask.bit_length() - 1
        yield position
        mask ^= 1 << position


class Shape:
    __slots__ = ("bit", "jobs", "request", "sid", "workers")

    def __init__(self, sid: int, request: Request) -> None:
        self.sid = sid
        self.bit = 1 << sid
        self.request = request
        self.workers = 0
        """The workers that could take one task of this shape now."""
        self.jobs = 0
        """Live jobs of this shape; a shape without any gives its number back."""


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

    __slots__ = ("probe", "shapes")

    def __init__(self, probe: Request) -> None:
        self.probe = probe
        self.shapes = 0


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

    __slots__ = ("bit", "facts", "fits", "number", "state", "static")

    def __init__(self, number: int) -> None:
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
MAX_IDLE_SHAPES = 2048
"""Shapes of no job that are kept, because the next job is likely to have one of them."""


class Index:
    def __init__(self) -> None:
        self.placeable = 0
        self._shapes: dict[Request, Shape] = {}
        self._by_sid: dict[int, Shape] = {}
        self._free_sids: list[int] = []
        self._free_numbers: list[int] = []
        self._workers: dict[str, Indexed] = {}
        self._by_number: dict[int, str] = {}
        self._classes: dict[tuple[object, ...], StaticClass] = {}
        self._cores = Axis()
        self._memory = Axis()
        self._gpu_needs: dict[tuple[int, int, bool], int] = {}
        self._gpu_cache: dict[tuple[object, ...], int] = {}
        self._gpu_cached = 0
        self._pools = dict.fromkeys(POOLS, 0)
        self._states: dict[tuple[object, ...], WorkerState] = {}
        self.without_gpu = 0

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
        for worker in workers:
            indexed = self._workers[worker.id]
            if not unmet_static(request, worker.id, worker.room.offer):
                indexed.static |= shape.bit
                if worker.is_open and _takes(worker, request):
                    self._flip(shape, indexed)
        return shape

    def left(self, shape: Shape) -> None:
        """A job of this shape is gone, or is of another shape now."""
        shape.jobs -= 1
        if not shape.jobs and len(self._shapes) > MAX_IDLE_SHAPES:
            self._drop(shape)

    def _drop(self, shape: Shape) -> None:
        """Nothing of this shape is left: its number may be used again."""
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
        need = (request.gpu_count, request.vram_mib, request.prefers_cuda)
        self._gpu_needs[need] = self._gpu_needs.get(need, 0) ^ shape.bit
        if not self._gpu_needs[need]:
            del self._gpu_needs[need]
        self._forget_gpus()
        key = _static_part(request)
        static = self._classes.setdefault(key, StaticClass(request))
        static.shapes ^= shape.bit
        if not static.shapes:
            del self._classes[key]

    # Workers

    def add_worker(self, worker_id: str) -> None:
        number = self._free_numbers.pop() if self._free_numbers else len(self._by_number)
        self._workers[worker_id] = Indexed(number)
        self._by_number[number] = worker_id

    def offer_changed(self, worker: Candidate) -> None:
        """Look at everything about this worker anew that may have changed."""
        indexed, facts = self._workers[worker.id], _facts(worker.room.offer)
        if facts != indexed.facts:
            indexed.facts, indexed.static = facts, 0
            for static in self._classes.values():
                if not unmet_static(static.probe, worker.id, worker.room.offer):
                    indexed.static |= static.shapes
        self.without_gpu &= ~indexed.bit
        if not worker.room.offer.devices:
            self.without_gpu |= indexed.bit
        self.room_changed(worker)

    def room_changed(self, worker: Candidate) -> None:
        """Its room, slots or health changed: flip the bits of the shapes for which that matters."""
        indexed = self._workers[worker.id]
        for sid in bits(self._fits(indexed, worker) ^ indexed.fits):
            self._flip(self._by_sid[sid], indexed)
        self._enter_state(worker.id, indexed, worker.room)

    def worker_at(self, number: int) -> str:
        return self._by_number[number]

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
        return self._has_room_for(indexed, worker) if worker.is_open else 0

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
            for (count, vram, prefers), shapes in self._gpu_needs.items():
                if pick_devices(Request(gpu_count=count, vram_mib=vram, prefers_cuda=prefers), room) is not None:
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
        insort(state.ids, worker_id)
        indexed.state = state


def _takes(worker: Candidate, request: Request) -> bool:
    return worker.free_slots(request.pool) >= 1 and not unmet_room(request, worker.id, worker.room)
