"""Every invariant of the fleet, in one place. Run after every event in tests and in the simulator."""

import math
from collections import Counter

from ostler.core import chain
from ostler.core import index as indexes
from ostler.core.claims import lease_of
from ostler.core.fleet import Attempt, Fleet, Job, Worker
from ostler.core.holding import NOTHING
from ostler.core.index import bits
from ostler.core.match import unmet, unmet_by_claim, unmet_health, unmet_trust
from ostler.core.placing.place import settled
from ostler.core.placing.worth import Kind, machine_of
from ostler.core.queueing.backfill import fits_beside
from ostler.core.queueing.holds import BESIDE, IN_TIME
from ostler.core.queueing.queue import band_key
from ostler.core.ranges import RangeSet
from ostler.core.room import Room, gpu_thousandths
from ostler.core.timers import LEASE, PREFERENCE
from ostler.domain import states


class InvariantBroken(AssertionError):
    """The fleet contradicts itself. Always a bug."""


def check(fleet: Fleet, now: float, *, after_pass: bool = True) -> None:
    """Raise InvariantBroken with the first contradiction found."""
    for worker in fleet.workers.values():
        _offer_is_what_it_says_under_its_policy(fleet, worker)
        _only_plain_workers_wait_for_assignments(worker)
        _room_is_the_sum_of_holdings(worker)
        _no_device_is_booked_twice(worker)
        _attempts_and_tasks_agree(fleet, worker)
    for job in fleet.jobs.values():
        _job_agrees_with_its_tasks(fleet, job)
    _claims_are_leased(fleet, now if after_pass else None)
    _preferences_give_way(fleet, now if after_pass else None)
    _checkpoints_are_counted(fleet)
    _shapes_are_those_of_the_jobs(fleet)
    _counts_by_user_are_true(fleet)
    counted = Counter(job.state for job in fleet.jobs.values())
    _need(counted == Counter(fleet.job_counts), "the counts of jobs by state are not those of the jobs")
    _queue_holds_what_waits(fleet)
    _chains_are_whole(fleet)
    _index_agrees_with_the_matcher(fleet, now, idle_too=after_pass)
    _free_gpus_are_counted(fleet)
    _holds_and_machines_agree(fleet)
    if after_pass:
        _holds_are_kept(fleet)
        _nobody_is_passed_over_by_those_ahead(fleet)
        _need(settled(fleet), "something waits that a worker could take")


def check_touched(fleet: Fleet) -> None:
    """The same of the workers and jobs that this batch has changed, whose rows are not taken yet: it costs no more on a
    larger fleet."""
    touched = fleet.touched
    sent_to = [sent.worker_id for sent in touched.sent.values()]
    begun_on = [attempt.worker_id for attempt in touched.attempts.values()]
    for name in dict.fromkeys([*begun_on, *sent_to, *touched.workers]):
        worker = fleet.workers[name]
        _room_is_the_sum_of_holdings(worker)
        _no_device_is_booked_twice(worker)
        _attempts_and_tasks_agree(fleet, worker)
    for job in touched.jobs.values():
        if fleet.jobs.get(job.id) is job:
            _job_agrees_with_its_tasks(fleet, job)


def _need(truth: bool, broken: str) -> None:
    if not truth:
        raise InvariantBroken(broken)


def _only_plain_workers_wait_for_assignments(worker: Worker) -> None:
    for one in worker.attempts.values():
        _need(not one.unsent or worker.is_plain, f"{one.task_id} is kept from {worker.id}, which takes several at once")
        _need(not (one.unsent and one.accepted), f"{one.task_id} was accepted and never sent")


def _offer_is_what_it_says_under_its_policy(fleet: Fleet, worker: Worker) -> None:
    truth = fleet.offer_of(worker.id, worker.capabilities, worker.claims, is_plain=worker.is_plain)
    _need(worker.offer == truth and worker.room.offer == truth, f"{worker.id}: its offer is not what it says it has")


def _room_is_the_sum_of_holdings(worker: Worker) -> None:
    truth = Room(worker.offer)
    for attempt in worker.attempts.values():
        truth.take(attempt.held)
    same = truth.state() == worker.room.state() and truth.placed == worker.room.placed
    _need(same, f"{worker.id}: the room kept beside the holdings is not their sum")


def _no_device_is_booked_twice(worker: Worker) -> None:
    """From the holdings alone, without the room's own arithmetic."""
    whole: dict[int, str] = {}
    shared: dict[int, int] = {}
    for attempt in worker.attempts.values():
        if attempt.task is None:
            continue  # nobody authorised it: it is there all the same, and is being stopped
        for index in attempt.held.grant.devices:
            if attempt.held.grant.share_mib:
                shared[index] = shared.get(index, 0) + attempt.held.grant.share_mib
            else:
                _need(
                    index not in whole, f"{worker.id}: GPU {index} is held by {whole.get(index)} and {attempt.task_id}"
                )
                whole[index] = attempt.task_id
    for index, amount in shared.items():
        _need(index not in whole, f"{worker.id}: GPU {index} is shared and held whole by {whole.get(index)}")
        device = next((device for device in worker.offer.devices if device.index == index), None)
        fits = device is None or worker.shrunk or amount <= device.vram_mib
        _need(fits, f"{worker.id}: GPU {index} has {amount} MiB promised, more than it has")


def _attempts_and_tasks_agree(fleet: Fleet, worker: Worker) -> None:
    for key, attempt in worker.attempts.items():
        task = attempt.task
        if task is None:
            continue
        _need(fleet.held.get(key) is attempt, f"attempt {key} is held on {worker.id} and not listed")
        if task.holder is attempt:
            _need(attempt.phase != "lapsed", f"{task.id}: its lapsed attempt still holds it")
            _need(task.id in _live_ids(task.job), f"{task.id} holds room and is forgotten")
        else:
            # Its grace ran out once: the room stays taken until its end is seen, the task has gone on without it.
            _need(attempt.phase in ("lapsed", "stopping"), f"{task.id}: {key} is {attempt.phase} and not its holder")


def _live_ids(job: Job) -> set[str]:
    return {task.id for task in (job.tasks or {}).values()}


def _job_agrees_with_its_tasks(fleet: Fleet, job: Job) -> None:
    waiting = RangeSet(job.waiting)
    tasks = job.tasks or {}
    away = 0
    for task in tasks.values():
        placed = task.state in states.PLACED
        has_room = task.holder is not None and task.holder.id == task.attempt
        _need(not placed or has_room or task.done, f"{task.id} is {task.state} without room")
        if task.state == states.PENDING:
            _need(not job.terms.model, f"{task.id} is one process of a model, and waits for a second start")
            _need(
                (task.index in waiting) == (task.holder is None and not task.resting),
                f"{task.id} is pending, neither waiting nor held, or both",
            )
        else:
            _need(task.index not in waiting, f"{task.id} is {task.state} and waits")
        away += placed or (task.state == states.PENDING and task.index not in waiting)
    counted = Counter(task.state for task in tasks.values() if task.state in states.PLACED) if job.size else Counter()
    _need(counted == Counter(job.placed or {}), f"job {job.id} has {counted} placed and counts {job.placed}")
    known = job.count_waiting() + away + job.count_ended()
    _need(known == job.total(), f"job {job.id} has {job.total()} tasks and accounts for {known}")
    if job.size and job.state in states.LIVE and job.id not in fleet.unplaced:
        truth = states.RUNNING if counted else states.PENDING
        _need(job.state == truth, f"job {job.id} is {job.state}, and its tasks make it {truth}")
    gone = job.state in states.TERMINAL and not tasks and job.id not in fleet.leaving
    _need(not gone, f"job {job.id} has ended and is still in memory")


def _claims_are_leased(fleet: Fleet, looked_at: float | None) -> None:
    """Only its lease binds a claim, so that one without a reminder would be held for ever."""
    reminders = dict.fromkeys(key for key, _ in fleet.timers.entries(LEASE))
    for attempt in fleet.held.values():
        worker = fleet.workers[attempt.worker_id]
        _need(attempt.claimed == worker.only_claims, f"{attempt.id}: a claim, or its worker claims; not both")
        if attempt.claimed:
            _need(not worker.connected, f"{worker.id} holds a connection and only claims")
            _need(attempt.task is not None and attempt.task.holder is attempt, f"{attempt.id} is claimed for nothing")
            _need(attempt.id in reminders, f"nobody looks at the lease of {attempt.id}")
            over = looked_at is not None and attempt.beaten + lease_of(attempt) <= looked_at
            _need(not over, f"the lease of {attempt.id} is over, and it is still held")


def _preferences_give_way(fleet: Fleet, looked_at: float | None) -> None:
    reminders = fleet.timers.entries(PREFERENCE)
    for job in fleet.jobs.values():
        closed_s = job.shape.request.cuda_first_s
        _need(closed_s in (0.0, job.terms.cuda_first_s), f"{job.id} waits {closed_s} s for CUDA, not as its terms say")
        if closed_s and not job.blocked_on:
            opens_at = job.queued + closed_s
            _need((job.id, opens_at) in reminders, f"{job.id} would wait for CUDA for ever")
            over = looked_at is not None and opens_at <= looked_at
            _need(not over, f"{job.id} has waited for CUDA for long enough, and is still closed")


def _checkpoints_are_counted(fleet: Fleet) -> None:
    tasks = [task for job in fleet.jobs.values() for task in (job.tasks or {}).values()]
    truth = Counter(task.checkpoint for task in tasks if task.checkpoint)
    _need(truth == fleet.checkpoints, "the checkpoints that are counted are not those of the tasks")


def _shapes_are_those_of_the_jobs(fleet: Fleet) -> None:
    truth = Counter(job.shape.sid for job in fleet.jobs.values())
    for shape in fleet.index.shapes():
        _need(truth[shape.sid] == shape.jobs, f"{shape.request} is of {truth[shape.sid]} jobs and counts {shape.jobs}")
    _need(fleet.index.idle_shapes() <= indexes.MAX_IDLE_SHAPES, "shapes that nobody needs are piling up")
    for job in fleet.jobs.values():
        _need(fleet.index.shape_at(job.shape.sid) is job.shape, f"{job.id} is of a shape that the index has dropped")
        displaced = sum(task.is_displaced() for task in (job.tasks or {}).values())
        _need(
            displaced == job.displaced, f"{displaced} tasks of {job.id} were displaced, and it counts {job.displaced}"
        )
        if job.lane is not None:
            place = (job.lane.shape, job.lane.user, job.lane.band.key)
            _need(place == (job.shape, job.user, band_key(job)), f"{job.id} stands in another's lane")


def _counts_by_user_are_true(fleet: Fleet) -> None:
    limits = (fleet.quotas.limit_what_runs, fleet.quotas.limit_the_queue)
    _need((fleet.limits_what_runs, fleet.limits_the_queue) == limits, "quotas were changed without `set_quotas`")
    running: dict[str, list[int]] = {}
    yielding: dict[float, dict[str, int]] = {}
    for attempt in fleet.held.values():
        assert attempt.task is not None
        counts = attempt.phase != "lapsed" and attempt.after is None
        _need(attempt.counted == counts, f"{attempt.id} is {attempt.phase} and miscounted")
        if attempt.counted:
            used = running.setdefault(attempt.task.job.user, [0, 0])
            used[0] += 1
            used[1] += gpu_thousandths(attempt.held, fleet.workers[attempt.worker_id].offer)
            if attempt.task.job.terms.preemptible or attempt.price_s is not None:
                priority = attempt.task.job.terms.priority if attempt.price_s is None else -math.inf
                where = yielding.setdefault(priority, {})
                where[attempt.worker_id] = where.get(attempt.worker_id, 0) + 1
    _need(running == fleet.running_of, f"what users hold is {running} and counted as {fleet.running_of}")
    _need(yielding == fleet.yielding, "what may be told to end for another is miscounted")
    bound = [held for worker in fleet.workers.values() for held in worker.attempts.values() if held.phase == "bound"]
    kept = [attempt for found in fleet.bound.values() for attempt in found]
    _need({held.id for held in bound} == {held.id for held in kept}, "kept room and its list disagree")


def _queue_holds_what_waits(fleet: Fleet) -> None:
    queued = {job.id for job in fleet.queue.in_order()}
    waiting = {job.id for job in fleet.jobs.values() if job.may_be_placed()}
    _need(queued == waiting, f"queue and jobs disagree on who waits: {sorted(queued ^ waiting)[:5]}")
    pending = 0
    for job in fleet.jobs.values():
        if job.may_be_placed():
            pending |= job.shape.bit
    _need(pending == fleet.queue.pending, "the queue's shapes are not those of the jobs that wait")


def _chains_are_whole(fleet: Fleet) -> None:
    """Whoever was sent ahead holds nothing, and waits for one that is there and that nobody else waits for."""
    for worker in fleet.workers.values():
        ahead = [one for one in worker.attempts.values() if one.after is not None]
        _need(len(ahead) == fleet.ahead_on.get(worker.id, 0), f"{worker.id}: those sent ahead are miscounted")
        for one in worker.attempts.values():
            if one.after is not None:
                _need(one.after.follower is one, f"{one.task_id} waits for one that another follows")
                _need(worker.attempts.get(one.after.id) is one.after, f"{one.task_id} waits for one that is gone")
                _need(one.held is NOTHING and one.will is not None, f"{one.task_id} was sent ahead and holds room")
                _need(not one.accepted, f"{one.task_id} has begun and still waits")
            _need(one.sent is None or _is_only_sent(one), f"{one.task_id} is written down as if it were only sent")
            follows = one.follower is None or one.follower.after is one
            stands = one.line is not None and (one.line.last is one or one.follower is not None)
            _need(stands == bool(one.after or one.follower), f"{one.task_id} stands in a line that is none")
            if one.after is None:
                line = list(chain.behind(one))
                _need(chain.end_of(one) == (len(line), line[-1] if line else one), f"{one.task_id}: its line is wrong")
            _need(follows, f"{one.task_id} is followed by one that does not wait for it")
            gone = one.held is NOTHING and one.after is None
            _need(not (gone and one.follower), f"{one.task_id} has no room to leave, and is waited for")


def _is_only_sent(attempt: Attempt) -> bool:
    """Nothing that a row would say of it, or of its task, is other than when it was sent."""
    task, sent = attempt.task, attempt.sent
    if task is None or sent is None or sent.attempts.get(attempt.id, (-1,))[0] != task.index:
        return False
    is_new = not (attempt.accepted or attempt.stop_reason or attempt.outcome or task.started_at or task.reason)
    as_sent = (task.state, task.attempt, attempt.phase) == (states.ASSIGNED, attempt.id, "assigned")
    return is_new and as_sent and task.holder is attempt and not (task.losses or task.failures or task.checkpoint)


def _nobody_is_passed_over_by_those_ahead(fleet: Fleet) -> None:
    """Of the room that the first of a chain leaves: nobody waits for it who would have it before those behind."""
    for name in fleet.ahead_on:
        worker = fleet.workers[name]
        for first in worker.attempts.values():
            ahead = [one for one in chain.behind(first) if not one.recalled and one.is_current()]
            if first.after is not None or not ahead or not worker.connected:
                continue
            _need(worker.is_open and name not in fleet.holds.on, f"tasks were sent ahead to {name}, which is not open")
            shapes = fleet.index.would_fit(worker, first.held)
            for one in ahead:
                assert one.task is not None
                job = one.task.job
                passed = fleet.queue.is_passed_over(shapes, band_key(job), job.user)
                _need(not passed, f"{one.task_id} was sent ahead to {name}, where another comes first")


def _holds_and_machines_agree(fleet: Fleet) -> None:
    machines = {name: hold for hold in fleet.holds.of.values() for name in hold.machines}
    _need(machines == fleet.holds.on, "the machines that are held are not those of the holds")
    _need(machines.keys() == fleet.index.held.keys(), "the index has other machines held than there are holds for")
    count = sum(len(hold.machines) for hold in fleet.holds.of.values())
    _need(count == len(machines), "a machine is held for two jobs")


def _holds_are_kept(fleet: Fleet) -> None:
    """Every hold is somebody's who waits for nothing but room; and whoever came to its machines since was let in, and
    does not keep its owner from starting when it was to start."""
    for job_id, hold in fleet.holds.of.items():
        waits = fleet.jobs.get(job_id) is hold.job and hold.job.may_be_placed() and hold.job.lane is not None
        _need(waits, f"machines are held for {job_id}, which does not wait")
        _need(len(hold.machines) == hold.job.shape.request.nodes, f"{job_id} has {len(hold.machines)} machines held")
        for machine in hold.machines.values():
            worker = machine.worker
            _need(worker is fleet.workers[worker.id] and worker.is_open, f"{worker.id} is held for {job_id} and closed")
            beside = []
            for attempt in worker.attempts.values():
                if attempt.task is None or attempt.id in machine.there_before:
                    continue
                way = machine.guests.get(attempt.id)
                _need(way is not None, f"{attempt.task_id} runs on {worker.id}, which is held for {job_id}")
                assert way is not None
                if way.kind == BESIDE:
                    beside.append(attempt.held)
                in_time = way.kind != IN_TIME or way.ends_at <= hold.promised
                _need(in_time, f"{attempt.task_id} passed the hold of {job_id} and does not end in time")
            fits = worker.shrunk or fits_beside(hold, machine, beside)
            _need(fits, f"{job_id} has no room on {worker.id} beside those let in")


def _free_gpus_are_counted(fleet: Fleet) -> None:
    counted: Counter[Kind] = Counter()
    for worker in fleet.workers.values():
        machine = machine_of(worker.offer)
        if machine is not None and worker.is_open and worker.id not in fleet.index.held:
            counted[machine.kind] += worker.room.free_devices()
    _need(counted == Counter(fleet.index.machines.free_gpus), "the free GPUs by kind are not those of the workers")


def _index_agrees_with_the_matcher(fleet: Fleet, now: float, *, idle_too: bool) -> None:
    """Idle shapes, of which there are many, are looked at once in a batch."""
    given = [worker for worker in fleet.workers.values() if not unmet_health(worker, now)]
    asking = [worker for worker in fleet.workers.values() if worker.only_claims and not unmet_trust(worker, now)]
    claimable = {worker.id: fleet.index.claimable(worker) for worker in asking}
    placeable = 0
    is_open = {number for number, name in enumerate(fleet.index.names) if fleet.workers[name].is_open}
    _need(is_open == set(bits(fleet.index.open_workers)), "the index is wrong about which workers are open")
    for shape in fleet.index.shapes():
        if not shape.jobs and not idle_too:
            continue
        truth = 0
        for worker in given:
            held = fleet.index.held.get(worker.id)
            if held is not None:
                agrees = bool(held & shape.bit) != bool(unmet(shape.request, worker, now))
                _need(agrees, f"the index is wrong about {shape.request} on {worker.id}, which is held")
            elif not unmet(shape.request, worker, now):
                truth |= fleet.index.bit_of(worker.id)
        for worker in asking:
            fits = not unmet_by_claim(shape.request, worker, now)
            agrees = fits == bool(claimable[worker.id] & shape.bit)
            _need(agrees, f"the index is wrong about whether {worker.id} may claim {shape.request}")
        wrong = [fleet.index.worker_at(number) for number in bits(truth ^ fleet.index.workers_of(shape))]
        _need(not wrong, f"the index is wrong about {shape.request} on {wrong[:3]}")
        gained = fleet.index.gained_for(shape) if fleet.queue.pending & shape.bit else None
        if gained is not None:
            named = {worker.id for worker in gained}
            found = {fleet.index.worker_at(number) for number in bits(truth)}
            _need(named == found, f"{found} have room for {shape.request}, and {named} are said to have gained it")
        placeable |= shape.bit if truth.bit_count() >= shape.request.nodes else 0
    overlooked = placeable & fleet.queue.pending & ~fleet.index.candidates()
    _need(not overlooked, "something waits that could be placed, and the next pass would not look at it")
