"""Who gets machines held for it, and who may pass a hold.

A task that does not fit is skipped; one that has been skipped for too long gets the machines held on which it can
start first. Of each priority, two kinds of jobs do: the one that is next in the order, and, much later and only now and
then, the one that has been there longest, because the order alone would let newcomers and higher tiers go first for
ever. So everybody is the oldest some day, gets a hold then at the latest, and a hold ends with its owner's start:
nobody is let in who would put that off beyond what was foreseen when the hold began.

Higher priority passes every hold of a lower one, as it does in the order.
"""

import math
from heapq import nsmallest
from itertools import islice
from typing import TYPE_CHECKING, Final

from ostler.core.fleet import Attempt, Fleet, Job, Worker
from ostler.core.holding import Holding, holding
from ostler.core.index import positions
from ostler.core.learning import estimates
from ostler.core.match import unmet_room
from ostler.core.queueing.holds import AHEAD, BESIDE, IN_TIME, HeldMachine, Hold, Way, named_for
from ostler.core.queueing.queue import GUESTS_LOOKED_AT, GUESTS_OF_A_LANE
from ostler.core.room import Room, pick_devices
from ostler.core.timers import HOLDS
from ostler.domain.resources import Request

if TYPE_CHECKING:
    from ostler.core.queueing.holds import Ends

HOLDS_AT_MOST: Final = 16
IN_LINE_LOOKED_AT: Final = 16
MACHINES_LOOKED_AT: Final = 256
"""For one hold; on a larger fleet, those with the least on them."""
OLD_AFTER: Final = 12
"""Times the wait of one that is next in order: from then on a job may have a hold for nothing but its age."""
LOOKS_PER_WAIT: Final = 20
LOOK_MOST_S: Final = 60.0


# Keeping


def keep(fleet: Fleet, now: float) -> None:
    """Drop the holds that are over, move those whose machines are, and look now and then for new ones."""
    holds = fleet.holds
    holds.looked_at = now
    if holds.of:
        _keep_those_there_are(fleet, now)
    if holds.look_at <= now and fleet.queue.pending and fleet.policy.holds:
        _look(fleet, now)
    if holds.look_at > now and fleet.queue.pending and not holds.watched:
        holds.watched = True
        fleet.timers.add(holds.look_at, HOLDS, "")


def _keep_those_there_are(fleet: Fleet, now: float) -> None:
    """Only where something has happened to their owners or their machines."""
    holds = fleet.holds
    happened = fleet.index.stale or fleet.queue.stirred & holds.shapes or fleet.bound or fleet.room_makers
    if not happened and not fleet.limits_what_runs:
        return
    _renew(fleet, now)
    for hold in list(holds.of.values()):
        if not _may_wait_for_room(fleet, hold.job):
            holds.release(hold.job.id, fleet.index)
        elif hold.shape is not hold.job.shape or not _stands(fleet, hold):
            holds.release(hold.job.id, fleet.index)
            holds.look_at = now


def _may_wait_for_room(fleet: Fleet, job: Job) -> bool:
    """Nothing but room keeps it, and no room is being cleared for it."""
    if fleet.jobs.get(job.id) is not job or job.lane is None or job.terms.model:
        return False
    cleared = job.id in fleet.bound or job.id in fleet.room_makers
    return not cleared and bool(fleet.within_quota(job.user, job.shape.bit))


def _stands(fleet: Fleet, hold: Hold) -> bool:
    """Its owner can still start on every one of its machines."""
    could_run = fleet.index.could_run
    return all(
        machine.worker.is_open and machine.opens_at < math.inf and could_run(name, hold.job.shape)
        for name, machine in hold.machines.items()
    )


# Giving


def _look(fleet: Fleet, now: float) -> None:
    holds, wait_s = fleet.holds, fleet.policy.hold_after_s
    _renew(fleet, now, late_too=True)
    fleet.index.unasked |= dict.fromkeys(fleet.index.held)  # what is known of how long jobs take may be other by now
    holds.look_at = now + min(LOOK_MOST_S, max(1.0, wait_s / LOOKS_PER_WAIT))
    holds.oldest_again_at = {key: at for key, at in holds.oldest_again_at.items() if at > now}
    _forget_nowhere(fleet, now)
    for priority in fleet.queue.priorities():
        if len(holds.of) >= HOLDS_AT_MOST:
            return
        if _hold_for_the_oldest(fleet, priority, now):
            _hold_for_the_next(fleet, priority, now)


def _forget_nowhere(fleet: Fleet, now: float) -> None:
    """What could start nowhere is looked at anew after a while, and when machines have come or gone."""
    holds = fleet.holds
    open_workers = fleet.index.open_workers.bit_count()
    if open_workers != holds.open_workers:
        holds.open_workers = open_workers
        holds.nowhere.clear()
    holds.nowhere = {shape: until for shape, until in holds.nowhere.items() if until > now and shape.jobs}


def _nowhere(fleet: Fleet) -> int:
    """The shapes that are not worth a look: or a few that could never start would be all that is looked at."""
    found = 0
    for shape in fleet.holds.nowhere:
        found |= shape.bit
    return found


def _starts_nowhere(fleet: Fleet, job: Job, now: float) -> None:
    fleet.holds.nowhere[job.shape] = now + LOOKS_PER_WAIT * (fleet.holds.look_at - now)


def _hold_for_the_oldest(fleet: Fleet, priority: int, now: float) -> bool:
    """False: it waits for machines that are held for others, and nobody else gets a hold before it."""
    holds = fleet.holds
    if priority in holds.oldest_again_at:
        return True
    for job in fleet.queue.longest_here(priority, _nowhere(fleet), IN_LINE_LOOKED_AT):
        if job.id in holds.of:
            return True
        is_old = job.queued + OLD_AFTER * fleet.policy.hold_after_s <= now  # it came early, and may have begun anew
        if not is_old or job.shape in holds.nowhere or not _may_wait_for_room(fleet, job):
            continue
        found = _machines(fleet, job, now)
        if found is None:
            _starts_nowhere(fleet, job, now)
            continue
        if found:
            _give(fleet, job, found, now)
            holds.oldest_again_at[priority] = now + fleet.policy.hold_after_s
        return bool(found)
    return True


def _hold_for_the_next(fleet: Fleet, priority: int, now: float) -> None:
    """For the first in line, and for those behind it that need other machines than all before them."""
    waited_since = now - fleet.policy.hold_after_s
    line = list(islice(fleet.queue.in_line(priority, _nowhere(fleet)), IN_LINE_LOOKED_AT))
    while line and line[-1].queued > waited_since:  # nobody behind these would be kept from a hold by them
        line.pop()
    spoken_for = seen = 0
    for job in line:
        if len(fleet.holds.of) >= HOLDS_AT_MOST:
            return
        if seen & job.shape.bit or job.shape in fleet.holds.nowhere or not _may_wait_for_room(fleet, job):
            continue
        able = fleet.index.could_run_some_day(job.shape)
        if job.queued <= waited_since and job.id not in fleet.holds.of and not able & spoken_for:
            found = _machines(fleet, job, now)
            if found is None:
                _starts_nowhere(fleet, job, now)
                continue
            _give(fleet, job, found, now)
        spoken_for |= able
        seen |= job.shape.bit
        if spoken_for.bit_count() == len(fleet.workers):
            return


def _give(fleet: Fleet, job: Job, machines: list[HeldMachine], now: float) -> None:
    if not machines:
        return
    holds = fleet.holds
    for machine in machines:
        weaker = holds.on.get(machine.worker.id)
        if weaker is not None:
            holds.release(weaker.job.id, fleet.index)
    holds.given += 1
    holds.enter(Hold(job, holds.given, machines, now), fleet.index)


def _machines(fleet: Fleet, job: Job, now: float) -> list[HeldMachine] | None:
    """Where it can start first, on as many machines as it needs. None: nowhere, whoever ends; empty: only on machines
    that are held for others of its priority or a higher one."""
    nodes = job.shape.nodes
    names, numbers = fleet.index.names, positions(fleet.index.could_run_some_day(job.shape))
    able = [fleet.workers[names[number]] for number in numbers]
    free = [worker for worker in able if not _is_held_from(fleet, job, worker)]
    few = nsmallest(max(nodes, MACHINES_LOOKED_AT), free, key=lambda worker: (len(worker.attempts), worker.id))
    opening = (HeldMachine(worker, *opens_at(fleet, job.shape.request, worker, now)) for worker in few)
    open_some_day = (machine for machine in opening if machine.opens_at < math.inf)
    first = nsmallest(nodes, open_some_day, key=lambda machine: (machine.opens_at, machine.worker.id))
    if len(first) == nodes:
        return first
    held = (worker for worker in able if _is_held_from(fleet, job, worker))
    later = sum(opens_at(fleet, job.shape.request, worker, now)[0] < math.inf for worker in held)
    return [] if later and len(first) + later >= nodes else None


def _is_held_from(fleet: Fleet, job: Job, worker: Worker) -> bool:
    hold = fleet.holds.on.get(worker.id)
    return hold is not None and hold.priority >= job.terms.priority


def opens_at(fleet: Fleet, request: Request, worker: Worker, now: float) -> tuple[float, "Ends"]:
    """When this worker could take one task of this, by what is known of what runs there; infinite: not while that
    lasts. And what that follows from."""
    room, ends = Room(worker.offer), _ends(fleet, worker, now)
    if not _takes(request, worker, room):
        return math.inf, ends
    for ends_at, held in reversed(ends):
        room.take(held.held)
        if not _takes(request, worker, room):
            return ends_at, ends
    return now, ends


def _ends(fleet: Fleet, worker: Worker, now: float) -> "Ends":
    found = [(now + _left_s(fleet, held, now), held) for held in worker.attempts.values()]
    return sorted(found, key=lambda one: (one[0], one[1].id))


def _left_s(fleet: Fleet, held: Attempt, now: float) -> float:
    if held.phase == "bound" and held.heir is not None:
        return estimates.run_time(fleet, held.heir).likely_s
    if held.task is None or held.phase in ("stopping", "lapsed"):
        return 0.0
    return max(0.0, estimates.left(fleet, held, now).likely_s)


def _takes(request: Request, worker: Worker, room: Room) -> bool:
    slots = worker.slots.total(request.pool) if worker.slots is not None else 0
    return room.placed[request.pool] < slots and not unmet_room(request, worker.id, room)


# Passing


def next_in_order(fleet: Fleet, now: float) -> Job | None:
    """The first in order that may start now."""
    queue, index = fleet.queue, fleet.index
    if fleet.policy.head_blocks:
        first = queue.pick(queue.pending)
        return first if first is not None and index.is_placeable(first.shape) else None
    behind = _room_behind_holds(fleet, now) if index.held else 0
    while True:
        shapes = queue.pending & index.candidates()
        if not shapes and not behind:
            return None
        job = queue.pick(shapes, behind, (lambda job: gets_enough(fleet, job, now)) if behind else None)
        if job is None or not job.shape.bit & shapes or index.is_placeable(job.shape):
            return job
        index.has_no_room_for(job.shape)


def _room_behind_holds(fleet: Fleet, now: float) -> int:
    """The shapes of which somebody has to be asked whether it may pass a hold: whoever was not let in is asked again
    when the machine has changed, and not before."""
    index, queue = fleet.index, fleet.queue
    found = 0
    for name in index.unasked:
        found |= index.held[name]
    if queue.stirred & ~found:
        held = 0
        for shapes in index.held.values():
            held |= shapes
        found |= _first_by_now(fleet, held & ~found, now)
    return found & queue.pending


def _first_by_now(fleet: Fleet, shapes: int, now: float) -> int:
    """Of these shapes, those in whose lanes others stand first by now, of whom one may pass. Nobody is asked who is as
    one that was not let in, and no more are than for one decision: the rest of the lanes count as if somebody there
    might."""
    left, found = GUESTS_LOOKED_AT, 0
    _renew(fleet, now)
    for lane in fleet.queue.stirred_lanes:
        bit = lane.shape.bit
        if not bit & shapes & ~found:
            continue
        is_gang = lane.shape.nodes > 1
        held = _held_with_room(fleet, bit)
        before: Job | None = None
        for job in islice(lane.jobs(), GUESTS_OF_A_LANE):
            is_like_it = before is not None and before.terms is job.terms and before.kind == job.kind
            before = job
            if not is_gang and ((is_like_it and job.id not in fleet.holds.of) or _is_refused(fleet, job, held)):
                continue
            left -= 1
            # For one alone, what is free counts elsewhere.
            if left < 0 or (gets_enough(fleet, job, now) if is_gang else ways_in(fleet, job, now)):
                found |= bit
                break
    return found


def pass_over(fleet: Fleet) -> None:
    """Nobody is left that could start now."""
    fleet.index.pass_over(fleet.queue.pending)
    fleet.queue.pass_over()


def gets_enough(fleet: Fleet, job: Job, now: float, cleared_on: int = 0) -> bool:
    """Whether it can be placed now, on machines that are free and on those that it may have though they are held."""
    free, nodes = fleet.index.workers_of(job.shape).bit_count(), job.shape.nodes
    return free >= nodes or free + len(ways_in(fleet, job, now, cleared_on)) >= nodes


def ways_in(fleet: Fleet, job: Job, now: float, cleared_on: int = 0) -> dict[str, Way]:
    """The held machines on which a task of this job may be placed, and how; on those where room was cleared for it,
    whoever they are held for."""
    found: dict[str, Way] = {}
    held = _held_with_room(fleet, job.shape.bit)
    run_s = estimates.surely_ends(fleet, job) if held else 0.0
    for worker_id in held:
        is_cleared = bool(cleared_on & fleet.index.bit_of(worker_id))
        way = _way_in(fleet, job, run_s, worker_id, is_cleared, now)
        if way is not None:
            found[worker_id] = way
    return found


def _held_with_room(fleet: Fleet, shape: int) -> list[str]:
    return [worker_id for worker_id, shapes in fleet.index.held.items() if shapes & shape]


def ways_past(fleet: Fleet, job: Job, now: float, cleared_on: int) -> dict[str, Way]:
    """The same when it starts, which ends its own hold: on the machines of the others."""
    ways = ways_in(fleet, job, now, cleared_on)
    fleet.holds.release(job.id, fleet.index)
    return {worker_id: way for worker_id, way in ways.items() if worker_id in fleet.holds.on}


def _way_in(fleet: Fleet, job: Job, run_s: float, worker_id: str, is_cleared: bool, now: float) -> Way | None:
    _renew(fleet, now)
    hold = fleet.holds.on[worker_id]
    machine = hold.machines[worker_id]
    if is_cleared or _goes_ahead(fleet, job, hold):
        return _way(job, machine.worker.room, AHEAD)
    if machine.refuses(job.shape, run_s):
        return None
    if now + run_s <= hold.free_until:
        return _way(job, machine.worker.room, IN_TIME, now + run_s)
    beside = _beside(hold, machine)
    if beside is None or not _takes(job.shape.request, machine.worker, beside):
        machine.refused[job.shape] = run_s  # time alone does not change that
        return None
    return _way(job, beside, BESIDE)


def _goes_ahead(fleet: Fleet, job: Job, hold: Hold) -> bool:
    """It may have what is held, whatever it leaves of it."""
    own = fleet.holds.of.get(job.id)
    is_older = own is not None and own.priority == hold.priority and own.number <= hold.number
    return is_older or job.terms.priority > hold.priority


def _is_refused(fleet: Fleet, job: Job, held: list[str]) -> bool:
    """None of these machines lets it in, by what others of its shape were told."""
    machines = [(fleet.holds.on[name], fleet.holds.on[name].machines[name]) for name in held]
    if not all(job.shape in machine.refused for _, machine in machines):
        return False
    run_s = estimates.surely_ends(fleet, job)
    return all(machine.refuses(job.shape, run_s) and not _goes_ahead(fleet, job, hold) for hold, machine in machines)


def _way(job: Job, room: Room, kind: str, ends_at: float = math.inf) -> Way | None:
    grant = pick_devices(job.shape.request, room)
    return Way(grant, kind, ends_at) if grant is not None else None


def _beside(hold: Hold, machine: HeldMachine) -> Room | None:
    """The machine's room that is free now and still is when the owner has started. None: nothing is known of that."""
    if machine.beside is None:
        then = _with_owner(hold, machine)
        machine.beside = _in_both(machine.worker.room, then) if then is not None else None
    return machine.beside


def _with_owner(hold: Hold, machine: HeldMachine) -> Room | None:
    """Who was let in for leaving that room counts as there, however soon it is thought to end."""
    room, stay = Room(machine.worker.offer), {key for key, way in machine.guests.items() if way.kind == BESIDE}
    for ends_at, held in machine.ends:
        if ends_at > hold.shadow or held.id in stay:
            room.take(held.held)
    request = hold.job.shape.request
    grant = pick_devices(request, room)
    if grant is None:
        return None
    room.take(holding(request, grant))
    return room


def _in_both(one: Room, other: Room) -> Room:
    room = Room(one.offer)
    room.cores_milli = min(one.cores_milli, other.cores_milli)
    room.memory_mib = min(one.memory_mib, other.memory_mib)
    room.vram_mib = [min(pair) for pair in zip(one.vram_mib, other.vram_mib, strict=True)]
    room.users = [max(pair) for pair in zip(one.users, other.users, strict=True)]
    room.placed = {pool: max(count, other.placed[pool]) for pool, count in one.placed.items()}
    return room


def _renew(fleet: Fleet, now: float, *, late_too: bool = False) -> None:
    """Foresee anew what has changed, and what was to be over by now and is not."""
    stale = list(fleet.index.stale)
    if late_too:
        late = (name for name, hold in fleet.holds.on.items() if hold.machines[name].opens_at <= now)
        stale += [name for name in late if name not in fleet.index.stale]
    if not stale:
        return
    fleet.index.stale.clear()
    for worker_id in stale:
        hold = fleet.holds.on[worker_id]
        machine = hold.machines[worker_id]
        machine.opens_at, machine.ends = opens_at(fleet, hold.job.shape.request, machine.worker, now)
        machine.guests = {key: way for key, way in machine.guests.items() if key in machine.worker.attempts}
    for hold in {id(hold): hold for hold in map(fleet.holds.on.__getitem__, stale)}.values():
        hold.foresee()


def let_in(fleet: Fleet, attempt: Attempt, way: Way) -> str:
    """An attempt has begun on a held machine; what there is to say about that."""
    hold = fleet.holds.on[attempt.worker_id]
    hold.machines[attempt.worker_id].guests[attempt.id] = way
    assert attempt.task is not None
    return way.words(named_for(attempt.task.job.user, hold.job))


def fits_beside(hold: Hold, machine: HeldMachine, guests: list[Holding]) -> bool:
    """Whether the owner has room on the machine with nothing there but these."""
    room = Room(machine.worker.offer)
    for held in guests:
        room.take(held)
    return _takes(hold.job.shape.request, machine.worker, room)
