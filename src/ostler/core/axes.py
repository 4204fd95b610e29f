"""What shapes need and what workers have free, along each axis that changes as tasks come and go.

An axis answers both ways with single numbers: which shapes so much is enough for, and which workers have enough for a
need. It is kept current by what has changed: a worker crosses the few needs between what it had and what it has. It is
noted when that happens, and counted when somebody asks: on a full fleet, what one has left the next takes before that.
"""

from bisect import bisect_right, insort
from typing import Final, NamedTuple

from ostler.core.room import Room
from ostler.domain.resources import Request

DIGITS: Final = bytes.maketrans(b"\0\1", b"01")
MAX_UNUSED_STATES: Final = 4096
"""States of devices that no worker is in, kept because one is likely to come back to them."""


def bits_of(numbers: bytes) -> int:
    """A number with these bits, each a byte that is 0 or 1, the lowest first."""
    return int(numbers[::-1].translate(DIGITS), 2) if numbers else 0


class Axis:
    """One amount: cores, or memory."""

    __slots__ = ("_free", "_needs", "_shapes", "_uncounted", "_within", "_workers")

    def __init__(self) -> None:
        self._needs: list[int] = []
        self._shapes: dict[int, int] = {}
        self._workers: dict[int, int] = {}
        """By need, those with at least as much; made when it is asked for."""
        self._within: list[int] | None = None
        """The shapes that need no more than each of the needs; None: shapes came or went since it was made."""
        self._free: list[int] = []
        """By worker."""
        self._uncounted: dict[int, int] = {}
        """Of workers that have another amount now: the one that `_workers` goes by."""

    def change(self, need: int, bit: int) -> None:
        """Add a shape, or take it away again."""
        if need not in self._shapes:
            insort(self._needs, need)
            self._shapes[need] = 0
        self._shapes[need] ^= bit
        if not self._shapes[need]:
            del self._shapes[need]
            self._needs.remove(need)
            self._workers.pop(need, None)
        self._within = None

    def add_worker(self) -> None:
        self._free.append(-1)

    def set_free(self, number: int, free: int) -> None:
        before = self._free[number]
        if before != free:
            self._free[number] = free
            if number not in self._uncounted:
                self._uncounted[number] = before

    def _count(self) -> None:
        needs, workers = self._needs, self._workers
        for number, before in self._uncounted.items():
            free = self._free[number]
            low, high = (before, free) if before < free else (free, before)
            for place in range(bisect_right(needs, low), bisect_right(needs, high)):
                have = workers.get(needs[place])
                if have is not None:
                    workers[needs[place]] = have ^ 1 << number
        self._uncounted.clear()

    def within(self, free: int) -> int:
        """The shapes for which so much is enough."""
        if self._within is None:
            self._within = [0]
            for need in self._needs:
                self._within.append(self._within[-1] | self._shapes[need])
        return self._within[bisect_right(self._needs, free)]

    def at_least(self, need: int) -> int:
        """The workers that have enough for one of the known needs."""
        if self._uncounted:
            self._count()
        found = self._workers.get(need)
        if found is None:
            found = self._workers[need] = bits_of(bytes(map(need.__le__, self._free)))
        return found


class GpuNeed(NamedTuple):
    """All of a request that a choice of devices depends on."""

    gpus: int
    vram_mib: int
    part_milli: int
    prefers_cuda: bool


def gpu_need(request: Request) -> GpuNeed:
    return GpuNeed(request.gpu_count, request.vram_mib, request.gpu_milli, request.prefers_cuda)


class Wanted:
    """A need for GPUs: the shapes that have it, and the workers that could meet it, as they were last counted."""

    __slots__ = ("bit", "need", "probe", "shapes", "workers")

    def __init__(self, need: GpuNeed, bit: int) -> None:
        self.need = need
        self.probe = Request(
            gpu_count=need.gpus, vram_mib=need.vram_mib, gpu_milli=need.part_milli, prefers_cuda=need.prefers_cuda
        )
        self.bit = bit
        self.shapes = 0
        self.workers = 0


class DeviceState:
    """The devices of workers that need not be told apart by them."""

    __slots__ = ("emptiest", "has_cuda", "serves", "together", "workers")

    def __init__(self, room: Room) -> None:
        self.has_cuda = room.offer.has_cuda
        self.workers = 0
        self.serves = 0
        """The needs that they could meet."""
        free = [room.free_vram(place) for place in range(len(room.users))]
        whole = sorted((one for one, users in zip(free, room.users, strict=True) if not users), reverse=True)
        self.together = [0]
        """What the largest free devices have together, by how many they are."""
        for one in whole:
            self.together.append(self.together[-1] + one)
        sizes = {device.vram_mib: device for device in room.offer.devices if device.vram_mib}
        self.emptiest = [
            (device, max(one for one, like in zip(free, room.offer.devices, strict=True) if like.vram_mib == size))
            for size, device in sizes.items()
        ]
        """Of each size of device, how much the emptiest has free."""

    def could_meet(self, wanted: Wanted) -> bool:
        """What room.pick_devices finds devices for."""
        need = wanted.need
        count = 1 if need.prefers_cuda and self.has_cuda else need.gpus
        if count:
            return count < len(self.together) and self.together[count] >= need.vram_mib
        if need.prefers_cuda or not (need.vram_mib or need.part_milli):
            return True
        return any(wanted.probe.share_mib(device) <= free for device, free in self.emptiest if free > 0)


class Gpus:
    """The devices, of which a need is met by some that are free, or by a part of one."""

    def __init__(self) -> None:
        self.wanted: dict[GpuNeed, Wanted] = {}
        self._by_number: dict[int, Wanted] = {}
        self._unused: list[int] = []
        self._states: dict[tuple[object, ...], DeviceState] = {}
        self._of: list[DeviceState | None] = []
        """By worker."""
        self._uncounted: dict[int, DeviceState | None] = {}
        """Of workers that are in another state now: the one that they count in."""
        self._devices: list[tuple[object, ...] | None] = []
        """As they were last, by worker."""
        self._shapes: dict[int, int] = {}
        """By needs, the shapes that have one of them; forgotten when shapes come or go."""

    def change(self, need: GpuNeed, bit: int) -> Wanted:
        """Add a shape, or take it away again."""
        self._count()
        wanted = self.wanted.get(need) or self._add(need)
        wanted.shapes ^= bit
        self._shapes.clear()
        if not wanted.shapes:
            self._drop(wanted)
        return wanted

    def _add(self, need: GpuNeed) -> Wanted:
        number = self._unused.pop() if self._unused else len(self._by_number)
        wanted = self.wanted[need] = self._by_number[number] = Wanted(need, 1 << number)
        for state in self._states.values():
            if state.could_meet(wanted):
                state.serves |= wanted.bit
                wanted.workers |= state.workers
        return wanted

    def _drop(self, wanted: Wanted) -> None:
        for state in self._states.values():
            state.serves &= ~wanted.bit
        number = wanted.bit.bit_length() - 1
        del self.wanted[wanted.need], self._by_number[number]
        self._unused.append(number)

    def add_worker(self) -> None:
        self._of.append(None)
        self._devices.append(None)

    def set_room(self, number: int, room: Room) -> None:
        devices = room.device_state()
        if devices is self._devices[number]:
            return
        self._devices[number] = devices
        before, now = self._of[number], self._state(room)
        if before is not now:
            self._of[number] = now
            if number not in self._uncounted:
                self._uncounted[number] = before

    def _count(self) -> None:
        for number, before in self._uncounted.items():
            now, bit = self._of[number], 1 << number
            assert now is not None
            if before is now:
                continue
            changed = now.serves
            if before is not None:
                before.workers ^= bit
                changed ^= before.serves
            now.workers |= bit
            while changed:
                one = changed.bit_length() - 1
                changed ^= 1 << one
                self._by_number[one].workers ^= bit
        self._uncounted.clear()

    def able(self, wanted: Wanted) -> int:
        """The workers that could meet it."""
        if self._uncounted:
            self._count()
        return wanted.workers

    def _state(self, room: Room) -> DeviceState:
        key = (room.offer.has_cuda, room.device_state())
        state = self._states.get(key)
        if state is None:
            if len(self._states) > len(self._of) + MAX_UNUSED_STATES:
                self._count()
                self._states = {key: state for key, state in self._states.items() if state.workers}
            state = self._states[key] = DeviceState(room)
            for wanted in self.wanted.values():
                if state.could_meet(wanted):
                    state.serves |= wanted.bit
        return state

    def served_by(self, number: int) -> int:
        """The shapes for which this worker's devices are enough."""
        state = self._of[number]
        serves = state.serves if state is not None else 0
        found = self._shapes.get(serves)
        if found is None:
            found = 0
            for wanted in self.wanted.values():
                if serves & wanted.bit:
                    found |= wanted.shapes
            self._shapes[serves] = found
        return found
