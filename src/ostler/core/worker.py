"""A worker: what it offers, what it holds and how it is."""

from typing import NamedTuple

from ostler.core.attempt import Attempt
from ostler.core.holding import Holding
from ostler.core.room import Room
from ostler.domain.resources import POOLS, Offer
from ostler.domain.worker import Capabilities, Slots

_FIELDS = (
    "address",
    "ahead",
    "announced",
    "attempts",
    "boot_id",
    "capabilities",
    "claims",
    "cooling",
    "cooling_until",
    "draining",
    "faults",
    "has_beaten",
    "id",
    "in_use",
    "is_plain",
    "last_contact",
    "last_contact_at",
    "leaving",
    "newest_session",
    "offer",
    "questions",
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


class Report(NamedTuple):
    """Slots as a heartbeat reported them, and how many of them are in use by now."""

    slots: Slots | None
    in_use: dict[str, int]
    at: float


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
        """As it last reported them; see `reports`."""
        self.totals: dict[str, int] = {}
        """By pool."""
        self.slots_at = 0.0
        self.in_use: dict[str, int] = {}
        """Slots in use as last reported, less what has ended since."""
        self.has_beaten = False
        """It has announced its slots in a heartbeat on this connection."""
        self.announced: Report | None = None
        """Of its last heartbeat, while a question with slots of its own waits for its answer."""
        self.questions = 0
        """How many `ready_for_work` wait for their answer."""
        self.is_plain = False
        """It speaks version 1 without extensions: one task answers a question, and pushes go one at a time."""
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
        """The slots that may be filled now."""
        if self.claims:
            return 1  # it asks for one when it has one
        left = self.slots_left(pool)
        if self.has_beaten and not self.is_plain:
            return left
        if self.questions:
            return min(left, self.questions) if self.is_plain else left
        return min(left, 1) if self.has_beaten and not self.awaits_acceptance() else 0

    def slots_left(self, pool: str) -> int:
        """The slots that nothing uses, whether they may be filled now or not."""
        if self.slots is None:
            return 0
        return self.totals[pool] - max(self.in_use.get(pool, 0), self.room.placed[pool])

    def awaits_acceptance(self) -> bool:
        """Whether a task was sent that this worker has not accepted yet."""
        return any(not one.accepted and one.phase in ("assigned", "stopping") for one in self.attempts.values())

    def reports(self, slots: Slots | None, now: float) -> None:
        """Take over the slots of a report; None: there is no report yet."""
        self.slots, self.slots_at = slots, now
        self.totals = {pool: slots.total(pool) for pool in POOLS} if slots is not None else {}
        self.in_use = {pool: slots.in_use(pool) for pool in POOLS} if slots is not None else {}

    def forget_reports(self) -> None:
        """A new connection begins without slots, heartbeats and questions."""
        self.reports(None, 0.0)
        self.has_beaten, self.announced, self.questions = False, None, 0

    def ask(self, slots: Slots | None, now: float) -> None:
        """Take in a question. The slots that come with it count until it is answered."""
        self.questions += 1
        if slots is None:
            return
        if self.has_beaten and self.announced is None:
            self.announced = Report(self.slots, self.in_use, self.slots_at)
        self.reports(slots, now)

    def count_answer(self) -> None:
        """An assignment is the whole answer to one question of a plain worker."""
        if self.is_plain and self.questions:
            self.questions -= 1

    def end_questions(self) -> None:
        """All questions are answered: the slots of the last heartbeat count again."""
        self.questions = 0
        if self.announced is not None:
            self.reports(self.announced.slots, self.announced.at)
            self.in_use = self.announced.in_use
            self.announced = None

    def count_end(self, attempt: Attempt) -> None:
        """A process has ended: a slot that was reported before as in use is free."""
        pool = attempt.held.pool
        if attempt.assigned <= self.slots_at and self.in_use.get(pool, 0) > 0:
            self.in_use[pool] -= 1
        before = self.announced
        if before is not None and attempt.assigned <= before.at and before.in_use.get(pool, 0) > 0:
            before.in_use[pool] -= 1

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
