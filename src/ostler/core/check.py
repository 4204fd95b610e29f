"""Every invariant of the fleet, in one place. Run after every event in tests and in the simulator."""

from ostler.core.fleet import Fleet, Job, Worker
from ostler.core.index import bits
from ostler.core.match import unmet
from ostler.core.place import settled
from ostler.core.ranges import RangeSet
from ostler.core.room import Room
from ostler.domain import states


class InvariantBroken(AssertionError):
    """The fleet contradicts itself. Always a bug."""


def check(fleet: Fleet, now: float, *, after_pass: bool = True) -> None:
    """Raise InvariantBroken with the first contradiction found."""
    for worker in fleet.workers.values():
        _room_is_the_sum_of_holdings(worker)
        _no_device_is_booked_twice(worker)
        _attempts_and_tasks_agree(fleet, worker)
    for job in fleet.jobs.values():
        _job_agrees_with_its_tasks(fleet, job)
    _counts_by_user_are_true(fleet)
    counted = {state: sum(job.state == state for job in fleet.jobs.values()) for state in states.STATES}
    _need(counted == fleet.job_counts, "the counts of jobs by state are not those of the jobs")
    _queue_holds_what_waits(fleet)
    _index_agrees_with_the_matcher(fleet, now)
    if after_pass:
        _need(settled(fleet), "something waits that a worker could take")


def _need(truth: bool, broken: str) -> None:
    if not truth:
        raise InvariantBroken(broken)


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
        placed = task.state in (states.ASSIGNED, states.RUNNING, states.ORPHANED)
        has_room = task.holder is not None and task.holder.id == task.attempt
        _need(not placed or has_room or task.done, f"{task.id} is {task.state} without room")
        if task.state == states.PENDING:
            _need(
                (task.index in waiting) == (task.holder is None and not task.resting),
                f"{task.id} is pending, neither waiting nor held, or both",
            )
        else:
            _need(task.index not in waiting, f"{task.id} is {task.state} and waits")
        away += placed or (task.state == states.PENDING and task.index not in waiting)
    known = job.count_waiting() + away + job.count_ended()
    _need(known == job.total(), f"job {job.id} has {job.total()} tasks and accounts for {known}")
    gone = job.state in states.TERMINAL and not tasks and job.id not in fleet.leaving
    _need(not gone, f"job {job.id} has ended and is still in memory")


def _counts_by_user_are_true(fleet: Fleet) -> None:
    running: dict[str, int] = {}
    for attempt in fleet.held.values():
        assert attempt.task is not None
        _need(attempt.counted == (attempt.phase != "lapsed"), f"{attempt.id} is {attempt.phase} and miscounted")
        if attempt.counted:
            running[attempt.task.job.user] = running.get(attempt.task.job.user, 0) + 1
    told = {user: used[0] for user, used in fleet.running_of.items()}
    _need(running == told, "what users hold is not the sum of their attempts")
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


def _index_agrees_with_the_matcher(fleet: Fleet, now: float) -> None:
    placeable = 0
    for shape in fleet.index.shapes():
        truth = 0
        for worker in fleet.workers.values():
            if not unmet(shape.request, worker, now):
                truth |= fleet.index.bit_of(worker.id)
                fits = fleet.index.fits_of(worker.id) & shape.bit
                _need(bool(fits), f"{worker.id} can take {shape.request} and the index says no")
        wrong = [fleet.index.worker_at(number) for number in bits(truth ^ shape.workers)]
        _need(not wrong, f"the index is wrong about {shape.request} on {wrong[:3]}")
        placeable |= shape.bit if truth.bit_count() >= shape.request.nodes else 0
    _need(placeable == fleet.index.placeable, "the index is wrong about which shapes can be placed")
