"""The order of the queue: priority, then tier, then who has used least lately, then arrival.

Jobs that wait stand in lanes, one for each (band, user, shape), linked through themselves: joining, leaving and
finding the first take the same time however many wait. An array stands there as one job.
"""

from bisect import insort
from collections.abc import Callable, Iterator
from heapq import nsmallest
from typing import TYPE_CHECKING

from ostler.core.index import Shape, bits
from ostler.core.usage import Usage
from ostler.domain.job import TIER_RANK

if TYPE_CHECKING:
    from ostler.core.fleet import Job

BandKey = tuple[int, int]


class Lane:
    """Jobs of one user and one shape in one band, in order of arrival."""

    __slots__ = ("band", "first", "last", "shape", "user")

    def __init__(self, band: "Band", user: str, shape: Shape) -> None:
        self.band = band
        self.user = user
        self.shape = shape
        self.first: Job | None = None
        self.last: Job | None = None

    def jobs(self) -> Iterator["Job"]:
        job = self.first
        while job is not None:
            yield job
            job = job.next

    def insert(self, job: "Job") -> None:
        """By arrival. A newcomer goes to the end at once; one that comes back is older than most and is
        placed from the front."""
        if self.last is None or self.last.seq < job.seq:
            before, after = self.last, None
        else:
            before, after = None, self.first
            while after is not None and after.seq < job.seq:
                before, after = after, after.next
        job.prev, job.next = before, after
        if before is None:
            self.first = job
        else:
            before.next = job
        if after is None:
            self.last = job
        else:
            after.prev = job

    def remove(self, job: "Job") -> None:
        if job.prev is None:
            self.first = job.next
        else:
            job.prev.next = job.next
        if job.next is None:
            self.last = job.prev
        else:
            job.next.prev = job.prev
        job.prev = job.next = None


class UserLanes:
    __slots__ = ("lanes", "shapes")

    def __init__(self) -> None:
        self.lanes: dict[int, Lane] = {}
        self.shapes = 0


class Band:
    """All that waits with one priority and one rank of tier."""

    __slots__ = ("key", "lanes_of", "shapes", "users")

    def __init__(self, key: BandKey) -> None:
        self.key = key
        self.users: dict[str, UserLanes] = {}
        self.lanes_of: dict[int, int] = {}
        """How many lanes each shape has here."""
        self.shapes = 0


class Queue:
    def __init__(self, usage: Usage, allowed: Callable[[str, int], int]) -> None:
        self._usage = usage
        self._allowed = allowed
        """Of some shapes, those of which a user may start one more."""
        self._bands: dict[BandKey, Band] = {}
        self._order: list[BandKey] = []
        self._lanes_of: dict[int, int] = {}
        self.pending = 0
        """The shapes of which something waits."""

    def add(self, job: "Job") -> None:
        if job.lane is not None:
            return
        key = band_key(job)
        band = self._bands.get(key)
        if band is None:
            band = self._bands[key] = Band(key)
            insort(self._order, key)
        user = band.users.get(job.user)
        if user is None:
            user = band.users[job.user] = UserLanes()
        sid = job.shape.sid
        lane = user.lanes.get(sid)
        if lane is None:
            lane = user.lanes[sid] = Lane(band, job.user, job.shape)
            user.shapes |= job.shape.bit
            band.shapes |= job.shape.bit
            band.lanes_of[sid] = band.lanes_of.get(sid, 0) + 1
            self._lanes_of[sid] = self._lanes_of.get(sid, 0) + 1
            self.pending |= job.shape.bit
        lane.insert(job)
        job.lane = lane

    def remove(self, job: "Job") -> None:
        lane = job.lane
        if lane is None:
            return
        lane.remove(job)
        job.lane = None
        if lane.first is None:
            self._close_lane(lane)

    def _close_lane(self, lane: Lane) -> None:
        band, sid = lane.band, lane.shape.sid
        user = band.users[lane.user]
        del user.lanes[sid]
        user.shapes ^= lane.shape.bit
        if not user.lanes:
            del band.users[lane.user]
        if _count_down(band.lanes_of, sid):
            band.shapes ^= lane.shape.bit
        if not band.users:
            del self._bands[band.key]
            self._order.remove(band.key)
        if _count_down(self._lanes_of, sid):
            self.pending ^= lane.shape.bit

    def pick(self, shapes: int) -> "Job | None":
        """The first job in order whose shape is among these."""
        for key in self._order:
            band = self._bands[key]
            if not band.shapes & shapes:
                continue
            wanted = {name: self._wanted(name, user, shapes) for name, user in band.users.items()}
            wanting = [name for name, found in wanted.items() if found]
            if wanting:
                name = min(wanting, key=self._rank)
                lanes = band.users[name].lanes
                heads = [lanes[sid].first for sid in bits(wanted[name])]
                return min((job for job in heads if job is not None), key=_arrival)
        return None

    def _wanted(self, name: str, user: UserLanes, shapes: int) -> int:
        found = user.shapes & shapes
        return self._allowed(name, found) if found else 0

    def heads(self, most: int) -> list["Job"]:
        """The first of every lane, in order of band and arrival, and no more than so many."""
        found: list[Job] = []
        for key in self._order:
            users = self._bands[key].users.values()
            lanes = (lane.first for user in users for lane in user.lanes.values() if lane.first is not None)
            found += nsmallest(most - len(found), lanes, key=_arrival)
            if len(found) >= most:
                break
        return found

    def oldest(self) -> "Job | None":
        """The job that came first of all that wait."""
        lanes = (lane for band in self._bands.values() for user in band.users.values() for lane in user.lanes.values())
        return min((lane.first for lane in lanes if lane.first is not None), key=_arrival, default=None)

    def in_order(self) -> Iterator["Job"]:
        """Every waiting job as `pick` would take them if all fitted and nobody were charged in between."""
        for key in self._order:
            users = self._bands[key].users
            for name in sorted(users, key=self._rank):
                jobs = [job for lane in users[name].lanes.values() for job in lane.jobs()]
                yield from sorted(jobs, key=_arrival)

    def _rank(self, user: str) -> tuple[float, str]:
        return (self._usage.of(user), user)


def band_key(job: "Job") -> BandKey:
    return (-job.terms.priority, TIER_RANK[job.terms.tier])


def _arrival(job: "Job") -> int:
    return job.seq


def _count_down(counts: dict[int, int], key: int) -> bool:
    """True when the last one has gone."""
    counts[key] -= 1
    if counts[key]:
        return False
    del counts[key]
    return True
