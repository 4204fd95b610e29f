"""Holds: machines that are kept for a job that others have passed for too long. Derived, never durable: after a restart
they follow again from how long each job has waited.

A machine is held for one job at a time. The index takes it out of what is free for all and tells what has room behind
the hold; who may have that room is decided in backfill.py.
"""

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from ostler.core.holding import Grant
from ostler.core.room import Room

if TYPE_CHECKING:
    from ostler.core.fleet import Attempt, Fleet, Job, Worker
    from ostler.core.index import Index, Shape

    Ends = list[tuple[float, Attempt]]
    """When each of those that run on a machine is thought to end, the first first."""

AHEAD: Final = "ahead"
"""Its priority is higher, its own hold is older, or the room was cleared for it."""
IN_TIME: Final = "in time"
"""It ends before the hold's owner could start."""
BESIDE: Final = "beside"
"""It leaves the room that the owner will need."""
OTHERS: Final = "another user's job"


def named_for(user: str, job: "Job") -> str:
    """Whose job has a place is nobody else's business; models are everybody's."""
    return job.id if job.user == user or job.terms.model else OTHERS


class Way(NamedTuple):
    """How a job may have room on a held machine."""

    grant: Grant
    kind: str
    ends_at: float = math.inf

    def words(self, owner: str) -> str:
        told = {
            AHEAD: "goes ahead of it",
            IN_TIME: "ends before that can start",
            BESIDE: "leaves the room that it needs",
        }
        return f"it is held for {owner}, and this {told[self.kind]}"


class HeldMachine:
    """One machine of a hold."""

    __slots__ = ("beside", "ends", "guests", "opens_at", "refused", "there_before", "worker")

    def __init__(self, worker: "Worker", opens_at: float, ends: "Ends") -> None:
        self.worker = worker
        self.opens_at = opens_at
        """When it could take its task of the owner, by what is known of what runs there."""
        self.ends = ends
        self.beside: Room | None = None
        """Its room that is free now and will still be when the owner has started, made when it is asked for."""
        self.refused: dict[Shape, float] = {}
        """By shape: the run seconds of the shortest that was not let in as things are."""
        self.there_before = set(worker.attempts)
        self.guests: dict[str, Way] = {}
        """The attempts that were let in since."""

    def refuses(self, shape: "Shape", run_s: float) -> bool:
        """One of this shape was not let in that does not run for longer, so that this one is not either."""
        shortest = self.refused.get(shape)
        return shortest is not None and run_s >= shortest


class Hold:
    __slots__ = ("job", "machines", "number", "promised", "shadow", "shape", "since")

    def __init__(self, job: "Job", number: int, machines: list[HeldMachine], now: float) -> None:
        self.job = job
        self.shape = job.shape
        """Its needs when it began; with others it may need other machines."""
        self.number = number
        """Of two of one priority, the older goes first."""
        self.machines = {machine.worker.id: machine for machine in machines}
        self.since = now
        self.foresee()
        self.promised = self.shadow
        """As first foreseen. Nobody is let in who would stay for longer, however late the owner will be: what was
        let in before is all that it can have to wait for."""

    @property
    def priority(self) -> int:
        return self.job.terms.priority

    def foresee(self) -> None:
        self.shadow = max(machine.opens_at for machine in self.machines.values())
        """When the owner could start, as foreseen now: a gang when the last of its machines opens."""
        for machine in self.machines.values():
            machine.beside = None
            machine.refused.clear()

    @property
    def free_until(self) -> float:
        return min(self.shadow, self.promised)


class Holds:
    def __init__(self) -> None:
        self.of: dict[str, Hold] = {}
        """By the owner's id."""
        self.on: dict[str, Hold] = {}
        """By machine."""
        self.shapes = 0
        """Of the owners, as they were when they were given their holds."""
        self.given = 0
        self.looked_at = 0.0
        """When the last pass was."""
        self.look_at = 0.0
        """When to look again who has waited for too long."""
        self.watched = False
        """A reminder of that is set."""
        self.oldest_again_at: dict[int, float] = {}
        """By priority: from when on a job may have a hold for nothing but its age again."""
        self.nowhere: dict[Shape, float] = {}
        """Shapes that could start nowhere, whoever ended, and until when nobody looks again."""
        self.open_workers = 0
        """When that was found."""

    def enter(self, hold: Hold, index: "Index") -> None:
        self.of[hold.job.id] = hold
        self.shapes |= hold.shape.bit
        for machine in hold.machines.values():
            self.on[machine.worker.id] = hold
            index.hold(machine.worker)

    def release(self, job_id: str, index: "Index") -> None:
        hold = self.of.pop(job_id, None)
        for machine in hold.machines.values() if hold is not None else ():
            del self.on[machine.worker.id]
            index.let_go(machine.worker)
        self.shapes = 0
        for hold in self.of.values():
            self.shapes |= hold.shape.bit


def keeps_out(fleet: "Fleet", job: "Job", worker_id: str) -> bool:
    """Whether this machine is another's, so that no room may be cleared on it for the job."""
    hold = fleet.holds.on.get(worker_id)
    return hold is not None and hold.job is not job and hold.priority >= job.terms.priority
