"""A worker: what it offers, what it holds and how it is."""

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
    "is_plain",
    "last_contact",
    "last_contact_at",
    "leaving",
    "newest_session",
    "offer",
    "questions",
    "registered_at",
    "report",
    "room",
    "session",
    "shrunk",
    "silent_about_at",
    "unseen",
    "watched",
    "written_at",
)


class Report:
    """Slots as a worker reported them, and how many of them are in use by now."""

    __slots__ = ("at", "in_use", "slots", "totals")

    def __init__(self, slots: Slots | None, at: float) -> None:
        self.slots = slots
        self.at = at
        self.totals = {pool: slots.total(pool) for pool in POOLS} if slots is not None else {}
        self.in_use = {pool: slots.in_use(pool) for pool in POOLS} if slots is not None else {}

    def left(self, pool: str, room: Room) -> int:
        """Those that nothing uses: neither what the worker reported nor what was placed there since."""
        return self.totals.get(pool, 0) - max(self.in_use.get(pool, 0), room.placed[pool])

    def is_like(self, other: "Report") -> bool:
        return (self.slots, self.in_use) == (other.slots, other.in_use)

    def raise_use(self, newer: "Report") -> None:
        for pool, count in newer.in_use.items():
            self.in_use[pool] = max(count, self.in_use.get(pool, 0))

    def count_end(self, attempt: Attempt) -> None:
        pool = attempt.held.pool
        if attempt.assigned <= self.at and self.in_use.get(pool, 0) > 0:
            self.in_use[pool] -= 1


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
        self.report = Report(None, 0.0)
        """Its slots as it last reported them."""
        self.announced = self.report
        """The same of its last heartbeat."""
        self.has_beaten = False
        """It has announced its slots in a heartbeat on this connection."""
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
        if not self.questions and not self.has_beaten:
            return 0
        left = self.report.left(pool, self.room)
        if not self.questions or not self.is_plain:
            return left
        unanswered = self.questions - sum(one.unsent for one in self.attempts.values())
        pushes = self.announced.left(pool, self.room) if self.has_beaten else 0
        return min(left, max(unanswered, pushes))

    def slots_left(self, pool: str) -> int:
        """The slots that nothing uses, by the last report, whether they may be filled now or not."""
        return self.report.left(pool, self.room)

    def awaits_acceptance(self) -> bool:
        """Whether a task was sent that this worker has not accepted yet."""
        sent = (one for one in self.attempts.values() if not (one.accepted or one.unsent))
        return any(one.phase in ("assigned", "stopping") for one in sent)

    @property
    def slots(self) -> Slots | None:
        return self.report.slots

    def take_heartbeat(self, slots: Slots, now: float) -> bool:
        """From now on tasks may be pushed into these slots. Returns whether anything has changed."""
        before, self.announced = (self.has_beaten, self.report), Report(slots, now)
        self.report, self.has_beaten = self.announced, True
        return not before[0] or not before[1].is_like(self.announced)

    def take_question(self, slots: Slots | None, now: float) -> None:
        """The slots that come with a question count until it is answered."""
        self.questions += 1
        if slots is not None:
            self.report = Report(slots, now)

    def count_answer(self) -> None:
        """An assignment is the whole answer to one question of a plain worker."""
        if self.is_plain and self.questions:
            self.questions -= 1

    def end_questions(self) -> None:
        """All questions are answered: the slots of the last heartbeat count again, and those that were in use when the
        worker asked stay in use."""
        self.questions = 0
        if self.has_beaten and self.report is not self.announced:
            if self.report.at >= self.announced.at:
                self.announced.raise_use(self.report)
            self.report = self.announced

    def forget_reports(self, questions: int = 0) -> None:
        """A new connection begins without slots and heartbeats."""
        self.report = self.announced = Report(None, 0.0)
        self.has_beaten, self.questions = False, questions

    def count_end(self, attempt: Attempt) -> None:
        """A process has ended: a slot that was reported before as in use is free."""
        self.report.count_end(attempt)
        if self.announced is not self.report:
            self.announced.count_end(attempt)

    def find(self, task_id: str, attempt: str) -> Attempt | None:
        """What this worker means; a worker of version 1 names the task alone."""
        held = self.attempts.get(attempt)
        if not attempt:
            named = [one for one in self.attempts.values() if one.task_id == task_id and not one.unsent]
            held = next((one for one in named if one.is_current()), next(iter(named), None))
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
