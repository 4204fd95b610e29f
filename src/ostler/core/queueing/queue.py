"""The order of the queue: priority, then tier, then whose room was another's, then who has used least lately, then
arrival.

Jobs that wait stand in lanes, one for each (band, user, shape), linked through themselves: joining, leaving and
finding the first take the same time however many wait. An array stands there as one job.

Users stand on a ladder by what they have used. A charge only ever adds, so that an old rung is at most too low: it is
put right when it is met, and a charge costs nothing here.
"""

import math
from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Final

from ostler.core.index import Shape, bits
from ostler.core.queueing.masked import Masked
from ostler.core.queueing.usage import Usage
from ostler.domain.job import TIER_RANK

if TYPE_CHECKING:
    from ostler.core.fleet import Job

BandKey = tuple[int, int, bool]
Rung = tuple[float, str]
GUESTS_LOOKED_AT: Final = 64
"""Jobs of which it is asked, for one decision, whether they may have room that is held for another."""
GUESTS_OF_A_LANE: Final = 8


class Lane:
    """Jobs of one user and one shape in one band, in order of arrival."""

    __slots__ = ("_near", "band", "first", "last", "shape", "user")

    def __init__(self, band: "Band", user: str, shape: Shape) -> None:
        self.band = band
        self.user = user
        self.shape = shape
        self.first: Job | None = None
        self.last: Job | None = None
        self._near: Job | None = None
        """The one that joined last: those that change lanes come in order, each next to the one before."""

    def jobs(self) -> Iterator["Job"]:
        job = self.first
        while job is not None:
            yield job
            job = job.next

    def insert(self, job: "Job") -> None:
        """By arrival. A newcomer goes to the end at once; one that comes back is older than most and is
        placed from the front, or from where the last one came in."""
        if self.last is None or self.last.seq < job.seq:
            before, after = self.last, None
        else:
            before, after = None, self.first
            if self._near is not None and self._near.seq < job.seq:
                before, after = self._near, self._near.next
            while after is not None and after.seq < job.seq:
                before, after = after, after.next
        job.prev, job.next = before, after
        self._near = job
        if before is None:
            self.first = job
        else:
            before.next = job
        if after is None:
            self.last = job
        else:
            after.prev = job

    def remove(self, job: "Job") -> None:
        if self._near is job:
            self._near = job.prev
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
    """What one user has waiting in one band: a lane for each shape."""

    __slots__ = ("_first", "_heads", "lanes", "rung", "shapes")

    def __init__(self, rung: Rung) -> None:
        self.lanes: dict[int, Lane] = {}
        self._heads: Masked[int] = Masked()
        """The arrival of the first of each lane, with its shape."""
        self._first: dict[int, Job] = {}
        self.rung = rung
        """Where the user stands on the band's ladder."""
        self.shapes = 0

    def join(self, lane: Lane, job: "Job") -> None:
        before = lane.first
        lane.insert(job)
        if lane.first is job:
            if before is not None:
                self._lose_head(before)
            self._get_head(lane, job)

    def leave(self, lane: Lane, job: "Job") -> None:
        was_first = lane.first is job
        lane.remove(job)
        if was_first:
            self._lose_head(job)
            if lane.first is not None:
                self._get_head(lane, lane.first)

    def _get_head(self, lane: Lane, job: "Job") -> None:
        self._heads.set(job.seq, lane.shape.bit)
        self._first[job.seq] = job

    def _lose_head(self, job: "Job") -> None:
        self._heads.remove(job.seq)
        del self._first[job.seq]

    def first_of(self, shapes: int) -> "Job | None":
        """The one that came first of these shapes."""
        seq = self._heads.first(shapes)
        return None if seq is None else self._first[seq]

    def by_arrival(self, shapes: int) -> Iterator["Job"]:
        """The first of each lane of these shapes."""
        seq = self._heads.first(shapes)
        while seq is not None:
            yield self._first[seq]
            seq = self._heads.first(shapes, seq)


class Band:
    """All that waits with one priority and one rank of tier; apart from it, what was displaced there."""

    __slots__ = ("key", "ladder", "lanes_of", "rebased", "shapes", "users")

    def __init__(self, key: BandKey, rebased: int) -> None:
        self.key = key
        self.users: dict[str, UserLanes] = {}
        self.ladder: Masked[Rung] = Masked()
        """The users, who has used least first, each with the shapes that wait."""
        self.rebased = rebased
        self.lanes_of: dict[int, int] = {}
        """How many lanes each shape has here."""
        self.shapes = 0


class Queue:
    def __init__(
        self, usage: Usage, allowed: Callable[[str, int], int], begins_to_wait: Callable[[Shape], None]
    ) -> None:
        self._usage = usage
        self._begins_to_wait = begins_to_wait
        self._allowed = allowed
        """Of some shapes, those of which a user may start one more."""
        self._bands: dict[BandKey, Band] = {}
        self._order: list[BandKey] = []
        self._lanes_of: dict[int, int] = {}
        self.pending = 0
        """The shapes of which something waits."""
        self.stirred = 0
        """The shapes of which some have come or gone since the end of a pass."""
        self.stirred_lanes: dict[Lane, None] = {}
        """Where that was."""
        self.joined: dict[Shape, None] = {}
        """The shapes of those that have begun to wait since somebody looked, as the first of their user and band."""

    def add(self, job: "Job") -> None:
        if job.lane is not None:
            return
        key = band_key(job)
        band = self._bands.get(key)
        if band is None:
            band = self._bands[key] = Band(key, self._usage.rebased)
            insort(self._order, key)
        user = band.users.get(job.user)
        if user is None:
            user = band.users[job.user] = UserLanes(self._rank(job.user))
        sid = job.shape.sid
        lane = user.lanes.get(sid)
        if lane is None:
            lane = user.lanes[sid] = Lane(band, job.user, job.shape)
            user.shapes |= job.shape.bit
            band.ladder.set(user.rung, user.shapes)
            band.shapes |= job.shape.bit
            band.lanes_of[sid] = band.lanes_of.get(sid, 0) + 1
            self._lanes_of[sid] = self._lanes_of.get(sid, 0) + 1
            self.joined[job.shape] = None
            if not self.pending & job.shape.bit:
                self.pending |= job.shape.bit
                self._begins_to_wait(job.shape)
        user.join(lane, job)
        job.lane = lane
        self._stir(lane)

    def remove(self, job: "Job") -> None:
        lane = job.lane
        if lane is None:
            return
        lane.band.users[lane.user].leave(lane, job)
        job.lane = None
        self._stir(lane)
        if lane.first is None:
            self._close_lane(lane)

    def _stir(self, lane: Lane) -> None:
        self.stirred |= lane.shape.bit
        self.stirred_lanes[lane] = None

    def pass_over(self) -> None:
        self.stirred = 0
        self.stirred_lanes.clear()

    def _close_lane(self, lane: Lane) -> None:
        band, sid = lane.band, lane.shape.sid
        user = band.users[lane.user]
        del user.lanes[sid]
        user.shapes ^= lane.shape.bit
        if user.lanes:
            band.ladder.set(user.rung, user.shapes)
        else:
            del band.users[lane.user]
            band.ladder.remove(user.rung)
        if _count_down(band.lanes_of, sid):
            band.shapes ^= lane.shape.bit
        if not band.users:
            del self._bands[band.key]
            self._order.remove(band.key)
        if _count_down(self._lanes_of, sid):
            self.pending ^= lane.shape.bit

    def pick(self, shapes: int, behind: int = 0, may_pass: "Callable[[Job], bool] | None" = None) -> "Job | None":
        """The first job in order whose shape is among these; or is among those that have room behind a hold, and that
        may pass it."""
        left = [GUESTS_LOOKED_AT]
        for key in self._order:
            band = self._bands[key]
            wanted = shapes | behind if left[0] else shapes
            if not band.shapes & wanted:
                continue
            for user in self._by_use(band, wanted):
                found = self._wanted(user, wanted)
                first = user.first_of(found & shapes) if found & shapes else None
                if found & ~shapes and may_pass is not None and left[0]:
                    guest = _first_guest(user, found & ~shapes, may_pass, left)
                    first = min((job for job in (first, guest) if job is not None), key=_arrival, default=None)
                if first is not None:
                    return first
        return None

    def alone(self, shapes: int) -> "tuple[Job, float] | None":
        """The first in order of these shapes, if nobody else waits for any of them in its band; and the arrival of the
        next that is not of its lane."""
        for key in self._order:
            band = self._bands[key]
            wanted = band.shapes & shapes
            if not wanted:
                continue
            user = next(user for user in band.users.values() if user.shapes & wanted)
            if any(band.lanes_of[sid] > 1 for sid in bits(wanted)) or wanted & ~user.shapes:
                return None
            first = user.first_of(wanted)
            assert first is not None
            other = user.first_of(wanted ^ first.shape.bit) if wanted != first.shape.bit else None
            return first, other.seq if other is not None else math.inf
        return None

    def is_passed_over(self, shapes: int, band: BandKey, user: str) -> bool:
        """Whether somebody waits for one of these shapes in an earlier band, or another user in this one."""
        for key in self._order:
            if key > band:
                return False
            wanted = self._bands[key].shapes & shapes
            if wanted and (key != band or self._has_others(self._bands[key], wanted, user)):
                return True
        return False

    def _has_others(self, band: Band, shapes: int, user: str) -> bool:
        own = band.users[user].shapes if user in band.users else 0
        return bool(shapes & ~own) or any(band.lanes_of[sid] > 1 for sid in bits(shapes))

    def _by_use(self, band: Band, shapes: int) -> Iterator[UserLanes]:
        """The users of a band for whom one of these shapes waits, who has used least first."""
        if band.rebased != self._usage.rebased:
            band.rebased, band.ladder = self._usage.rebased, Masked()
            for name, user in band.users.items():
                user.rung = self._rank(name)
                band.ladder.set(user.rung, user.shapes)
        rung = band.ladder.first(shapes)
        while rung is not None:
            user, now = band.users[rung[1]], self._rank(rung[1])
            if now == rung:
                yield user
            else:  # it comes later, where it is met again
                band.ladder.remove(rung)
                user.rung = now
                band.ladder.set(now, user.shapes)
            rung = band.ladder.first(shapes, rung)

    def _wanted(self, user: UserLanes, shapes: int) -> int:
        found = user.shapes & shapes
        return self._allowed(user.rung[1], found) if found else 0

    def heads(self, most: int) -> list["Job"]:
        """The first of every lane, in order of band and arrival, and no more than so many."""
        found: list[Job] = []
        for key in self._order:
            users = self._bands[key].users.values()
            found += _first_of_all((user.by_arrival(user.shapes) for user in users), most - len(found))
            if len(found) >= most:
                break
        return found

    def urgent(self, above: float, without: Mapping[int, int], most: int) -> list["Job"]:
        """The same of those of a higher priority than this that no quota keeps back, without some shapes of each
        priority."""
        found: list[Job] = []
        for key in self._order:
            if -key[0] <= above or len(found) >= most:
                break
            band, out = self._bands[key], without.get(-key[0], 0)
            if band.shapes & ~out:
                found += _first_of_all((self._heads(user, out) for user in band.users.values()), most - len(found))
        return found

    def _heads(self, user: UserLanes, without: int) -> Iterator["Job"]:
        """The first of each of the user's lanes of which one more may start, by arrival, but for these shapes."""
        return user.by_arrival(self._wanted(user, ~without))

    def priorities(self) -> list[int]:
        """Those with which something waits, highest first."""
        return list(dict.fromkeys(-key[0] for key in self._order))

    def in_line(self, priority: int, without: int) -> Iterator["Job"]:
        """The first of every lane of this priority that no quota keeps back, in order, without these shapes."""
        for key in [key for key in self._order if key[0] == -priority]:
            for user in self._by_use(self._bands[key], ~without):
                yield from self._heads(user, without)

    def longest_here(self, priority: int, without: int, most: int) -> list["Job"]:
        """Those of them that came first, whoever has used how much."""
        bands = (self._bands[key] for key in self._order if key[0] == -priority)
        return _first_of_all((self._heads(user, without) for band in bands for user in band.users.values()), most)

    def oldest(self) -> "Job | None":
        """The job that came first of all that wait."""
        users = (user for band in self._bands.values() for user in band.users.values())
        found = _first_of_all((user.by_arrival(user.shapes) for user in users), 1)
        return found[0] if found else None

    def in_order(self) -> Iterator["Job"]:
        """Every waiting job as `pick` would take them if all fitted and nobody were charged in between."""
        for key in self._order:
            for user in self._by_use(self._bands[key], -1):
                yield from merge(*[lane.jobs() for lane in user.lanes.values()], key=_arrival)

    def _rank(self, user: str) -> Rung:
        return (self._usage.of(user), user)


def band_key(job: "Job") -> BandKey:
    return (-job.terms.priority, TIER_RANK[job.terms.tier], not job.displaced)


def _first_guest(user: UserLanes, shapes: int, may_pass: "Callable[[Job], bool]", left: list[int]) -> "Job | None":
    """The first of these that may pass a hold. A few of each lane are asked, and no more in all than are left."""
    found: list[Job] = []
    for sid in bits(shapes):
        if not left[0]:
            break
        for job in islice(user.lanes[sid].jobs(), min(GUESTS_OF_A_LANE, left[0])):
            left[0] -= 1
            if may_pass(job):
                found.append(job)
                break
    return min(found, key=_arrival, default=None)


def _first_of_all(lines: Iterable[Iterator["Job"]], most: int) -> list["Job"]:
    """So many of those that came first; each line is asked for no more than that takes."""
    return list(islice(merge(*lines, key=_arrival), most))


def _arrival(job: "Job") -> int:
    return job.seq


def _count_down(counts: dict[int, int], key: int) -> bool:
    """True when the last one has gone."""
    counts[key] -= 1
    if counts[key]:
        return False
    del counts[key]
    return True
