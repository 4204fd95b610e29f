"""The machines as the scheduler tells them apart: of which kind they are, how many of their GPUs are free, and in which
state each is. Machines in one state are scored once for all."""

from ostler.core.placing.worth import Kind, Machine, machine_of
from ostler.core.room import Room
from ostler.core.roster import Roster
from ostler.domain.resources import Offer, Request


class State:
    """Machines that offer the same and have the same free room."""

    __slots__ = ("key", "workers")

    def __init__(self, key: tuple[object, ...]) -> None:
        self.key = key
        self.workers = 0


class Alike:
    """Machines that offer the same."""

    __slots__ = ("number", "offer", "offered", "workers")

    def __init__(self, offered: tuple[object, ...], number: int, offer: Offer) -> None:
        self.offered = offered
        self.number = number
        self.offer = offer
        """Of any of them: what they have, not who they are."""
        self.workers = 0


class Known:
    """What is known of one machine."""

    __slots__ = ("alike", "bit", "entered", "free", "machine", "room", "state")

    def __init__(self, bit: int) -> None:
        self.bit = bit
        self.machine: Machine | None = None
        self.free = 0
        """Of its GPUs, those that nobody has."""
        self.alike: Alike | None = None
        self.state: State | None = None
        self.entered = True
        """False: it has changed since."""
        self.room: Room | None = None


class Machines:
    def __init__(self) -> None:
        self.counts: dict[Machine, int] = {}
        """How many there are of each kind that has GPUs."""
        self.changes = 0
        """How often a kind came or went."""
        self.free_gpus: dict[Kind, int] = {}
        """Those that nobody has, on machines that take work."""
        self.without_gpu = 0
        self.moved = 0
        """Those that have entered another state since whoever reads this took note of it."""
        self.roster = Roster()
        """Ties between workers go to the first."""
        self._known: list[Known] = []
        self._alike: dict[tuple[object, ...], Alike] = {}
        self._last_alike = 0
        self._states: dict[tuple[object, ...], State] = {}
        self._unentered = 0
        """Those that have changed since they entered a state."""

    def add(self, name: str) -> None:
        known = Known(1 << len(self._known))
        self._known.append(known)
        self.roster.add(name, known.bit)

    def offered(self, number: int, offer: Offer) -> None:
        known = self._known[number]
        self._enter_alike(known, offer)
        self._count(known, machine_of(offer))
        self.without_gpu &= ~known.bit
        if not offer.devices:
            self.without_gpu |= known.bit

    def _enter_alike(self, known: Known, offer: Offer) -> None:
        gpus = (offer.gpu_type, offer.gpu_names, offer.devices)
        key = (offer.backend, *gpus, offer.cores_milli, offer.memory_mib, offer.available_mib)
        alike = self._alike.get(key)
        if alike is None:
            self._last_alike += 1
            alike = self._alike[key] = Alike(key, self._last_alike, offer)
        before, known.alike = known.alike, alike
        if before is not None:
            before.workers ^= known.bit
            if not before.workers and before is not alike:
                del self._alike[before.offered]
        alike.workers |= known.bit

    def large_enough_for(self, request: Request) -> int:
        """By what is quickly seen."""
        found = 0
        for alike in self._alike.values():
            offer = alike.offer
            has_gpus = len(offer.devices) >= request.gpu_count
            if has_gpus and offer.cores_milli >= request.cores_milli and offer.memory_mib >= request.memory_mib:
                found |= alike.workers
        return found

    def _count(self, known: Known, machine: Machine | None) -> None:
        if machine == known.machine:
            return
        if known.machine is not None:
            self._count_free(known, known.machine, 0)
        for one, sign in ((known.machine, -1), (machine, 1)):
            if one is not None:
                number = self.counts.get(one, 0) + sign
                self.changes += number in (0, sign)
                self.counts[one] = number
                if not number:
                    del self.counts[one]
        known.machine = machine

    def _count_free(self, known: Known, machine: Machine, free: int) -> None:
        if free != known.free:
            self.free_gpus[machine.kind] = self.free_gpus.get(machine.kind, 0) + free - known.free
            known.free = free

    def room_changed(self, number: int, room: Room, takes_work: bool) -> None:
        known = self._known[number]
        known.room = room
        if known.entered:
            known.entered = False
            self._unentered |= known.bit
        if known.machine is not None:
            self._count_free(known, known.machine, room.free_devices() if takes_work else 0)

    # States

    def state_of(self, number: int) -> State:
        """It is entered now if it has changed since: most changes are over before anybody asks."""
        known = self._known[number]
        if not known.entered:
            self._enter_state(known)
        assert known.state is not None
        return known.state

    def enter_states(self, workers: int) -> None:
        """So that each of these is in no state but its own."""
        unentered = workers & self._unentered
        while unentered:
            known = self._known[unentered.bit_length() - 1]
            unentered ^= known.bit
            self._enter_state(known)

    def _enter_state(self, known: Known) -> None:
        assert known.alike is not None and known.room is not None
        self._unentered ^= known.bit
        known.entered = True
        key = (known.alike.number, *known.room.state())
        before = known.state
        if before is not None:
            if before.key == key:
                return
            before.workers ^= known.bit
            if not before.workers:
                del self._states[before.key]
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = State(key)
        state.workers |= known.bit
        self.moved |= known.bit
        known.state = state
