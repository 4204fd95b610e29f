"""A worker: what it offers, what it holds and how it is."""

from ostler.core.attempt import Attempt
from ostler.core.holding import Holding
from ostler.core.room import Room
from ostler.domain.resources import POOLS, Offer
from ostler.domain.worker import Capabilities, Slots

_FIELDS = (
    "address",
    "ahead",
    "attempts",
    "boot_id",
    "capabilities",
    "claims",
    "cooling",
    "cooling_until",
    "draining",
    "faults",
    "id",
    "in_use",
    "last_contact",
    "last_contact_at",
    "leaving",
    "newest_session",
    "offer",
    "registered_at",
    "room",
    "session",
    "shrunk",
    "silent_about_at",
    "slots",
    "slots_at",
    "totals",
    "unseen",
    "watched",
    "written_at",
)


class Worker:
    __slots__ = _FIELDS

    def __init__(
        self,
        id: str,
        capabilities: Capabilities,
        offer: Offer,
        room: Room,
        last_contact: float = 0.0,
        claims: bytes = b"",
    ) -> None:
        self.id = id
        self.capabilities = capabilities
        self.offer = offer
        self.room = room
        self.session = 0
        """The socket that speaks for it; 0: none."""
        self.newest_session = 0
        """The last one that spoke for it: sockets are numbered as they are opened."""
        self.boot_id = ""
        self.address = ""
        self.draining = False
        """An operator closed it."""
        self.leaving = False
        """It said that it is going."""
        self.faults = 0
        """Failures of its own in a row."""
        self.watched = False
        """A reminder to look for its silence is set."""
        self.shrunk = False
        """Its offer changed while something was held: the holdings may exceed it."""
        self.silent_about_at = -1.0
        """When it was last found not to have accepted what it was given."""
        self.cooling_until = 0.0
        self.cooling = False
        self.slots: Slots | None = None
        """As it last said; see `says`."""
        self.totals: dict[str, int] = {}
        """By pool."""
        self.slots_at = 0.0
        self.in_use: dict[str, int] = {}
        """Slots in use as last reported, less what has ended since."""
        self.attempts: dict[str, Attempt] = {}
        """Everything that holds room here."""
        self.unseen: dict[str, Holding] = {}
        """What was given back without its end being seen; held again if the worker turns out to have it."""
        self.last_contact = last_contact
        self.last_contact_at = 0.0
        self.registered_at = 0.0
        self.ahead = 0
        """How many assignments it takes beyond its room."""
        self.claims = claims
        """Of one that only claims: the capability of its last claim, JSON."""
        self.written_at = 0.0
        """When that was written down last."""

    @property
    def only_claims(self) -> bool:
        return bool(self.claims)

    @property
    def connected(self) -> bool:
        return self.session != 0

    @property
    def is_open(self) -> bool:
        return self.session != 0 and not (self.draining or self.leaving or self.cooling) and self.slots is not None

    def free_slots(self, pool: str) -> int:
        if self.claims:
            return 1  # it asks for one when it has one
        if self.slots is None:
            return 0
        return self.totals[pool] - max(self.in_use.get(pool, 0), self.room.placed[pool])

    def says(self, slots: Slots | None, in_use: dict[str, int]) -> None:
        """How many slots it has; None: it has not said so yet."""
        self.slots, self.in_use = slots, in_use
        self.totals = {pool: slots.total(pool) for pool in POOLS} if slots is not None else {}

    def find(self, task_id: str, attempt: str) -> Attempt | None:
        """What this worker means; a worker of version 1 names the task alone."""
        held = self.attempts.get(attempt)
        if not attempt:
            held = next(
                (one for one in self.attempts.values() if one.task_id == task_id and one.phase != "bound"), None
            )
        return held if held is not None and held.task_id == task_id and held.phase != "bound" else None

    def offering(self, offer: Offer) -> "Worker":
        """A copy as it would be if it offered this: what it holds, it holds."""
        room = Room(offer)
        for attempt in self.attempts.values():
            room.take(attempt.held)
        other = Worker(self.id, self.capabilities, offer, room)
        for name in _FIELDS:
            if name not in ("offer", "room"):
                setattr(other, name, getattr(self, name))
        return other
