"""A job that has not ended, or that still holds room."""

from typing import TYPE_CHECKING

from ostler.core.ranges import ONE, Ranges
from ostler.domain import states
from ostler.domain.job import Terms
from ostler.domain.records import Dropped

if TYPE_CHECKING:
    from ostler.core.attempt import Task
    from ostler.core.index import Shape
    from ostler.core.queueing.queue import Lane


class Job:
    """Small: a queue may hold a million of them. The collector walks them, which hub/collecting.py sees to."""

    __slots__ = (
        "blocked_on",
        "cancelled",
        "displaced",
        "dropped",
        "ended",
        "finished_at",
        "id",
        "kind",
        "lane",
        "next",
        "placed",
        "prev",
        "queued",
        "queued_at",
        "reason",
        "seq",
        "shape",
        "size",
        "snapshot",
        "state",
        "tasks",
        "terms",
        "user",
        "waiting",
    )

    def __init__(
        self,
        *,
        id: str,
        seq: int,
        user: str,
        shape: "Shape",
        terms: Terms,
        size: int,
        queued: float,
        queued_at: float = 0.0,
        state: str = states.PENDING,
        waiting: Ranges = ONE,
        ended: dict[str, int] | None = None,
        dropped: tuple[Dropped, ...] = (),
        finished_at: float | None = None,
        reason: str = "",
        cancelled: bool = False,
        snapshot: str = "",
        kind: int = 0,
    ) -> None:
        self.id = id
        self.seq = seq
        self.user = user
        self.shape = shape
        self.terms = terms
        self.size = size
        self.queued = queued
        """When its wait began: at its submission, or at the last requeue."""
        self.queued_at = queued_at
        self.state = state
        self.waiting = waiting
        """Half-open ranges of the indices that wait to be placed."""
        self.tasks: dict[int, Task] | None = None
        """Those to which something has happened, and which have not ended or still hold room."""
        self.ended = ended
        """How many tasks have ended, by state."""
        self.placed: dict[str, int] | None = None
        """Of an array: how many tasks are with a worker, by state."""
        self.dropped = dropped
        """Indices that ended without ever being placed: they have no rows of their own."""
        self.finished_at = finished_at
        self.reason = reason
        self.cancelled = cancelled
        self.snapshot = snapshot
        self.kind = kind
        """What the runs of its like are known by; 0: none."""
        self.blocked_on: set[str] | None = None
        """Jobs that must succeed first."""
        self.displaced = 0
        """How many of its tasks wait because their room was another's. While there are any it is the first of its
        class."""
        self.lane: Lane | None = None
        self.prev: Job | None = None
        self.next: Job | None = None

    @property
    def is_gang(self) -> bool:
        return self.shape.nodes > 1

    def may_be_placed(self) -> bool:
        """It waits for nothing but room. A gang is placed whole or not at all."""
        if not self.waiting or self.blocked_on:
            return False
        return not self.is_gang or self.count_waiting() == self.size

    def wants_room(self) -> bool:
        """Something of it waits, or will as soon as its last processes are gone."""
        pending = any(task.state == states.PENDING for task in (self.tasks or {}).values())
        return self.state not in states.TERMINAL and (bool(self.waiting) or pending)

    def is_placed(self) -> bool:
        """Whether a task of this array or gang is with a worker."""
        return any((self.placed or {}).values())

    def task_id(self, index: int) -> str:
        return f"{self.id}.{index}" if self.size else self.id

    def total(self) -> int:
        return self.size or 1

    def has_waiting(self, index: int) -> bool:
        """Of an array: whether this task waits for room, and has had none yet."""
        return any(low <= index < high for low, high in self.waiting)

    def count_waiting(self) -> int:
        return sum(high - low for low, high in self.waiting)

    def count_ended(self) -> int:
        return sum((self.ended or {}).values())

    def count_move(self, old: str, new: str) -> None:
        """One of its tasks goes from this state to that one."""
        if self.placed is None:
            self.placed = {}
        if old in states.PLACED:
            self.placed[old] -= 1
        if new in states.PLACED:
            self.placed[new] = self.placed.get(new, 0) + 1

    def counts(self) -> dict[str, int]:
        """An array's tasks by state."""
        found = {**(self.ended or {}), **(self.placed or {})}
        found[states.PENDING] = self.size - sum(found.values())
        return {state: count for state, count in found.items() if count}
