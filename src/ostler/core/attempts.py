"""The life of an attempt and what it does to its task: begun, accepted, ended, lost, released.

Two things are kept apart throughout: what is decided about a task (its state), and whether its processes are gone (its
holding). The first may change at once; the second only when the worker says so.
"""

import zlib
from typing import Final

from ostler.core import chain, checkpoints
from ostler.core.effects import AssignTask, CancelTask, Effect
from ostler.core.fleet import Attempt, Fleet, Job, Task, Worker
from ostler.core.holding import NOTHING, Grant, Holding
from ostler.core.learning.lessons import vram_of
from ostler.core.queueing.bound import bind, unbind
from ostler.core.queueing.usage import CHARGED_EVERY_S, START_QUANTUM_S, weight
from ostler.core.timers import ACCEPTANCE, COOLDOWN, RUNTIME
from ostler.domain import states
from ostler.domain.job import STOP_GRACE_S
from ostler.domain.quota import GATEWAY_USER
from ostler.domain.records import why_ahead

ACCEPT_WITHIN_S: Final = 30.0
FAULTS_TO_COOL: Final = 3
COOLDOWN_S: Final = 60.0
COOLDOWN_MAX_S: Final = 600.0
LOOK_AGAIN_S: Final = 600.0
"""A budget is looked at this often: reminders of what has long ended must not pile up for a day."""
MASTER_PORTS: Final = (20_000, 32_000)
CALLED_BACK: Final = "called back"


def begin(fleet: Fleet, job: Job, worker: Worker, grant: Grant, why: str, now: float) -> Attempt:
    """Authorise the job's first waiting task to run there: reserved from now on, confirmed by the worker's
    acceptance."""
    attempt = _authorise(fleet, job, worker, job.shape.holding(grant), why, now)
    unbind(fleet, job.id)
    fleet.room_makers.pop(job.id, None)
    if _is_charged(job):
        fleet.charge(job.user, START_QUANTUM_S * weight(attempt.held, worker.offer, fleet.policy), now)
    if worker.ahead:
        fleet.look_ahead[worker.id] = None
    return attempt


def begin_ahead(fleet: Fleet, job: Job, before: Attempt, now: float) -> Attempt:
    """The same in the room of one that runs there, from its end on: until then it holds nothing and counts for
    nobody."""
    will = before.held if before.will is None else before.will
    worker, why = fleet.workers[before.worker_id], why_ahead(before.worker_id, before.task_id)
    if not job.size or job.waiting[0][0] in (job.tasks or {}):
        attempt = _authorise(fleet, job, worker, NOTHING, why, now, will)
    else:
        # No row or feed line for the task: its array's state alone may change.
        attempt = _take_next(fleet, job, worker, NOTHING, why, now, will)
        assert attempt.task is not None
        _move(fleet, attempt.task, states.ASSIGNED, "")
        fleet.write_together(attempt, attempt.task, before.task_id)
        if job.state != states.RUNNING:
            derive_array(fleet, job, now)
    chain.follow(fleet, before, attempt)
    return attempt


def _authorise(
    fleet: Fleet, job: Job, worker: Worker, held: Holding, why: str, now: float, will: Holding | None = None
) -> Attempt:
    attempt = _take_next(fleet, job, worker, held, why, now, will)
    assert attempt.task is not None
    set_state(fleet, attempt.task, states.ASSIGNED, "", now)
    fleet.touch_attempt(attempt)
    return attempt


def _take_next(
    fleet: Fleet, job: Job, worker: Worker, held: Holding, why: str, now: float, will: Holding | None
) -> Attempt:
    """Its first waiting task is this attempt's; nobody has been told, and nothing is to be written yet."""
    index = job.waiting[0][0]
    fleet.take_waiting(job, index)
    task = fleet.task(job, index)
    attempt = Attempt(
        id=fleet.new_attempt_id(),
        task_id=task.id,
        task=task,
        worker_id=worker.id,
        held=held,
        will=will,
        phase="assigned",
        assigned=now,
        assigned_at=fleet.wall(now),
        why=why,
    )
    attempt.unsent = worker.is_plain
    fleet.take(worker, attempt)
    task.holder = attempt
    task.attempt = attempt.id
    task.worker = worker.id
    task.exit_code = None
    return attempt


def has_begun(fleet: Fleet, attempt: Attempt, now: float) -> None:
    """Its worker has started it, or has seen its end: if it was sent ahead, those before it are gone, whether that was
    told or not."""
    if attempt.after is not None:
        has_begun(fleet, attempt.after, now)
        spend_time(fleet, attempt.after, now)
        attempt.after.started = None  # what it ran is counted
        _hand_over(fleet, attempt.after, now)


def _hand_over(fleet: Fleet, attempt: Attempt, now: float) -> None:
    """Its follower is to be accepted from now on, and to be paid for; whoever waits for the room waits for its end."""
    follower = chain.hand_over(fleet, attempt)
    if attempt.heir is not None:
        _bequeath(fleet, attempt, follower, attempt.heir)
    fleet.moved_up[follower.id] = follower
    assert follower.task is not None
    rate = weight(follower.held, fleet.workers[follower.worker_id].offer, fleet.policy)
    fleet.charge(follower.task.job.user, START_QUANTUM_S * rate, now)


def watch_moved_up(fleet: Fleet, now: float) -> None:
    """Those to be accepted from this batch on. Most of them have ended in it: for thousands, nobody is reminded."""
    moved_up, fleet.moved_up = fleet.moved_up, {}
    for name, attempt in moved_up.items():
        if not attempt.accepted and name in fleet.held:
            fleet.timers.add(now + ACCEPT_WITHIN_S, ACCEPTANCE, name)


def _bequeath(fleet: Fleet, attempt: Attempt, follower: Attempt, heir: Job) -> None:
    attempt.heir, follower.heir = None, heir
    makers = fleet.room_makers.get(heir.id)
    if makers is not None:
        makers.discard(attempt.id)
        makers.add(follower.id)


def call_back(fleet: Fleet, attempt: Attempt) -> list[Effect]:
    """Ask for it, and for all behind it, if they have not begun: the last first, so that none moves up meanwhile."""
    effects: list[Effect] = []
    for one in reversed([attempt, *chain.behind(attempt)]):
        if not one.recalled:
            one.recalled = True
            effects += cancel_message(fleet, one)
    return effects


def assignment(fleet: Fleet, attempt: Attempt) -> AssignTask:
    """The message for this attempt; sending it again changes nothing on a worker that has it."""
    task = attempt.task
    assert task is not None
    job = task.job
    is_learnt = bool(job.terms.auto or job.terms.grows)
    return AssignTask(
        worker_id=attempt.worker_id,
        session=fleet.workers[attempt.worker_id].session,
        job_id=job.id,
        task_id=task.id,
        attempt=attempt.id,
        devices=attempt.held.grant.devices,
        whole=not attempt.held.grant.share_mib if is_learnt else None,
        vram_mib=vram_of(attempt, fleet.workers[attempt.worker_id]) if is_learnt else attempt.held.grant.share_mib,
        memory_mib=attempt.held.memory_mib if job.terms.auto else 0,
        index=task.index if job.size and not job.is_gang else None,
        remaining_s=remaining_s(task),
        rank=task.index if job.is_gang else None,
        hosts=gang_hosts(fleet, job),
        master_port=master_port(job),
        checkpoint=task.checkpoint,
        checkpoint_by=task.checkpoint_by,
        after=(attempt.after.id,) if attempt.after is not None else (),
    )


def gang_hosts(fleet: Fleet, job: Job) -> tuple[str, ...]:
    """Where each member runs, as the others reach it."""
    if not job.is_gang:
        return ()
    workers = [fleet.workers[fleet.task(job, rank).worker] for rank in range(job.size)]
    return tuple(worker.address or worker.capabilities.hostname or worker.id for worker in workers)


def master_port(job: Job) -> int:
    """The same for all members of a round, another for the next: the old one may still be closing."""
    first = (job.tasks or {}).get(0)
    if not job.is_gang or first is None:
        return 0
    return MASTER_PORTS[0] + zlib.crc32(first.attempt.encode()) % (MASTER_PORTS[1] - MASTER_PORTS[0])


def remaining_s(task: Task) -> float:
    """What is left of the run-time budget; 0: there is no bound."""
    budget = task.job.terms.max_runtime_s
    return max(0.001, budget - task.used_s) if budget else 0.0


def accept(fleet: Fleet, attempt: Attempt, now: float) -> None:
    """The worker has started it, or says that it still runs."""
    task = attempt.task
    assert task is not None
    if attempt.after is not None:
        has_begun(fleet, attempt, now)
    if not attempt.accepted:
        start_clock(fleet, attempt, task, now)
    if attempt.phase == "assigned":
        attempt.phase = "running"
    fleet.touch_attempt(attempt)
    if task.state != states.RUNNING:
        set_state(fleet, task, states.RUNNING, "", now)


def in_line(fleet: Fleet, attempt: Attempt, waits_for: str, now: float) -> None:
    """Its worker has it, and has handed it to somebody else's queue: it has not begun and spends nothing until then.
    Told to end, it keeps its room until it is out of there."""
    task = attempt.task
    if attempt.accepted or task is None:
        return
    attempt.accept_by = now + ACCEPT_WITHIN_S
    fleet.timers.add(attempt.accept_by, ACCEPTANCE, attempt.id)
    reason = f"waits for {waits_for}"
    is_to_begin = attempt.is_current() and attempt.phase == "assigned"
    if is_to_begin and (task.state, task.reason) != (states.ASSIGNED, reason):
        set_state(fleet, task, states.ASSIGNED, reason, now)


def start_clock(fleet: Fleet, attempt: Attempt, task: Task, now: float, *, watched: bool = True) -> None:
    """From here on it counts as started, and what it runs is spent."""
    seen(fleet, attempt)
    attempt.started, attempt.charged_s = now, START_QUANTUM_S
    attempt.started_at = fleet.wall(now)
    if task.started_at is None:
        task.started_at = attempt.started_at
    if watched:
        watch_budget(fleet, attempt, now)


def watch_budget(fleet: Fleet, attempt: Attempt, now: float) -> None:
    if attempt.task is not None and attempt.task.job.terms.max_runtime_s:
        fleet.timers.add(now + min(remaining_s(attempt.task), LOOK_AGAIN_S), RUNTIME, attempt.id)


def stop(fleet: Fleet, attempt: Attempt, reason: str) -> list[Effect]:
    """Tell the worker to end it. Its room stays taken until its end is seen."""
    behind = call_back(fleet, attempt.follower) if attempt.follower is not None else []
    if attempt.phase != "lapsed":
        attempt.phase = "stopping"
    attempt.stop_reason = attempt.stop_reason or reason
    fleet.touch_attempt(attempt)
    return behind + cancel_message(fleet, attempt)


def may_be_on_its_way(attempt: Attempt) -> bool:
    """It was told to end before its worker had accepted it: what the worker says now may be older than both messages,
    and its processes may yet begin, in room that must not be another's meanwhile."""
    return attempt.task is not None and attempt.phase == "stopping" and not attempt.accepted


def seen(fleet: Fleet, attempt: Attempt) -> None:
    """Its worker has it, whether it should or not. A plain worker may be sent the next."""
    if not attempt.accepted:
        attempt.accepted = True
        fleet.touch_attempt(attempt)
        _let_send(fleet, fleet.workers[attempt.worker_id])


def _let_send(fleet: Fleet, worker: Worker) -> None:
    """Nothing may be on its way to a plain worker any more: the next of its tasks is sent."""
    if worker.is_plain:
        fleet.may_be_sent[worker.id] = None


def cancel_message(fleet: Fleet, attempt: Attempt) -> list[Effect]:
    worker = fleet.workers[attempt.worker_id]
    _let_send(fleet, worker)
    if not worker.connected or attempt.unsent:
        return []
    named = attempt.id if attempt.task is not None or not attempt.id.startswith(UNNAMED) else ""
    return [
        CancelTask(
            worker_id=worker.id,
            session=worker.session,
            task_id=attempt.task_id,
            attempt=named,
            reason=attempt.stop_reason or (CALLED_BACK if attempt.recalled else "cancelled"),
            unstarted=attempt.recalled and not attempt.stop_reason,
            grace_s=attempt.task.job.terms.stop_s if attempt.task is not None else STOP_GRACE_S,
        )
    ]


UNNAMED: Final = "?"
"""Prefix of the key under which a process without an attempt of its own is held."""


def hold_stray(fleet: Fleet, worker: Worker, task_id: str, attempt_id: str, now: float) -> Attempt:
    """A process that should not be there takes room all the same, until it is gone."""
    stray = Attempt(
        id=attempt_id or UNNAMED + task_id,
        task_id=task_id,
        task=None,
        worker_id=worker.id,
        held=worker.unseen.pop(attempt_id, Holding()),
        phase="stopping",
        accepted=True,
        assigned=now,
        stop_reason="this attempt is not authorised any more",
    )
    fleet.take(worker, stray)
    return stray


def release(fleet: Fleet, attempt: Attempt, outcome: str, reason: str, now: float) -> None:
    """Its processes are gone: the room is free, and a task that waited only for that may be placed."""
    worker = fleet.workers[attempt.worker_id]
    spend_time(fleet, attempt, now)
    attempt.outcome = outcome
    attempt.reason = reason or attempt.stop_reason
    attempt.finished_at = fleet.wall(now)
    fleet.touch_attempt(attempt)
    if attempt.after is not None:
        chain.close_gap(fleet, attempt)
    elif attempt.follower is not None:
        _hand_over(fleet, attempt, now)
    if worker.ahead or fleet.ahead_on:
        fleet.look_ahead[worker.id] = None
    attempt.unsent = False
    _let_send(fleet, worker)
    fleet.give(worker, attempt)
    quota_eased(fleet)
    if attempt.heir is not None:
        _inherit(fleet, attempt, attempt.heir, now)
    task = attempt.task
    if task is None:
        return
    fleet.leave(task.job, task)
    if task.holder is not attempt:
        return
    task.holder = None
    if task.state == states.PENDING:
        fleet.enqueue(task)


def quota_eased(fleet: Fleet) -> None:
    """Less counts as somebody's: whom a quota kept from a machine that is held may have it now."""
    if fleet.limits_what_runs:
        fleet.index.unasked |= dict.fromkeys(fleet.index.held)


def _inherit(fleet: Fleet, attempt: Attempt, heir: Job, now: float) -> None:
    """The room goes to whoever it was cleared for, if that job still wants it."""
    makers = fleet.room_makers.get(heir.id)
    if makers is not None:
        makers.discard(attempt.id)
        if not makers:
            del fleet.room_makers[heir.id]
    still_wanted = fleet.jobs.get(heir.id) is heir and heir.wants_room()
    worker = fleet.workers[attempt.worker_id]
    if still_wanted and worker.is_open:
        bind(fleet, attempt.id, worker, attempt.held, heir, now)


def spend_time(fleet: Fleet, attempt: Attempt, now: float) -> None:
    """Count what it ran against its task's budget and its user's share; once."""
    if attempt.task is None or attempt.started is None or attempt.phase == "lapsed":
        return
    if attempt.spends:
        attempt.task.used_s += max(0.0, now - attempt.started)
        fleet.touch_task(attempt.task)
    _charge(fleet, attempt.task.job, attempt, now - attempt.started, now)


def charge_meanwhile(fleet: Fleet, attempt: Attempt, now: float) -> None:
    """It runs: or its user would seem to use nothing until its end."""
    if attempt.task is None or attempt.started is None or attempt.phase == "lapsed":
        return
    ran_s = now - attempt.started
    if ran_s >= attempt.charged_s + CHARGED_EVERY_S:
        _charge(fleet, attempt.task.job, attempt, ran_s, now)


def _is_charged(job: Job) -> bool:
    """The gateway's models are charged to the users who call them."""
    return not (job.terms.model and job.user == GATEWAY_USER)


def _charge(fleet: Fleet, job: Job, attempt: Attempt, ran_s: float, now: float) -> None:
    if ran_s > attempt.charged_s and _is_charged(job):
        rate = weight(attempt.held, fleet.workers[attempt.worker_id].offer, fleet.policy)
        fleet.charge(job.user, (ran_s - attempt.charged_s) * rate, now)
        attempt.charged_s = ran_s


def back_to_pending(fleet: Fleet, task: Task, reason: str, now: float) -> None:
    """It shall run again. It waits in the queue as soon as nothing holds room for it."""
    set_state(fleet, task, states.PENDING, reason, now)
    if task.holder is None:
        fleet.enqueue(task)


def over_budget(task: Task) -> bool:
    return bool(task.job.terms.max_runtime_s) and task.used_s >= task.job.terms.max_runtime_s


def end_task(fleet: Fleet, task: Task, state: str, reason: str, now: float) -> None:
    """The task's last state. Whatever still runs of it keeps its room until it is gone."""
    task.finished_at = fleet.wall(now)
    job = task.job
    if job.ended is None:
        job.ended = {}
    job.ended[state] = job.ended.get(state, 0) + 1
    if task.state == states.PENDING and task.holder is None:
        fleet.take_waiting(job, task.index)
    set_state(fleet, task, state, reason, now)
    fleet.leave(job, task)


def forget_ended(fleet: Fleet) -> None:
    """Drop what has ended from memory, once its rows are on their way: the ledger has all that is left to know. Not
    earlier: an event of the same batch may still be about it."""
    leaving, fleet.leaving = fleet.leaving, {}
    over, fleet.over = fleet.over, []
    for task in over:
        tasks = task.job.tasks or {}
        if task.state in states.TERMINAL and task.holder is None and tasks.get(task.index) is task:
            checkpoints.left_memory(fleet, task)
            del tasks[task.index]
    for job in leaving.values():
        if job.state in states.TERMINAL and not job.tasks:
            fleet.forget_job(job)


def set_state(fleet: Fleet, task: Task, state: str, reason: str, now: float) -> None:
    job = task.job
    _move(fleet, task, state, reason)
    fleet.touch_task(task)
    if job.size:
        fleet.announce(
            now,
            "task",
            job.id,
            user=job.user,
            task=task.id,
            state=state,
            worker=task.worker,
            attempt=task.attempt,
            reason=reason,
        )
    if job.size:
        derive_array(fleet, job, now, task.reason)
    else:
        _set_job(fleet, job, task.state, task.reason, now, task)


def _move(fleet: Fleet, task: Task, state: str, reason: str) -> None:
    """The state itself, and what is counted by it."""
    job = task.job
    was_displaced = bool(job.displaced) and task.is_displaced()
    if task.state != state:
        states.move(task.id, task.state, state)
        if job.size:
            job.count_move(task.state, state)
        task.state = state
    task.reason = reason
    if was_displaced or state == states.PENDING:
        _count_displaced(fleet, job, int(task.is_displaced()) - int(was_displaced))
    if state in states.LIVE:
        task.finished_at = None


def _count_displaced(fleet: Fleet, job: Job, more: int) -> None:
    """Where it stands in the queue follows from that."""
    if more:
        was_queued = job.lane is not None
        fleet.queue.remove(job)
        job.displaced += more
        if was_queued:
            fleet.queue.add(job)


def derive_array(fleet: Fleet, job: Job, now: float, cause: str = "") -> None:
    """Sets the state of an array or a gang from those of its tasks. `cause`: the reason of the last change of one."""
    state, reason = _array_state(job, cause)
    if state == states.PENDING and job.state == states.RUNNING:
        fleet.unplaced[job.id] = job  # its next task may be placed in this batch: then the job never waited
        state = states.RUNNING
    _set_job(fleet, job, state, reason, now)
    if job.state in states.TERMINAL:
        fleet.leave(job)


def settle_arrays(fleet: Fleet, now: float) -> None:
    """Makes arrays and gangs pending that lost their last placed task in this batch. Runs at the end of the batch."""
    unplaced, fleet.unplaced = fleet.unplaced, {}
    for job in unplaced.values():
        if job.state == states.RUNNING and not job.is_placed():
            _set_job(fleet, job, states.PENDING, "", now)


def _set_job(fleet: Fleet, job: Job, state: str, reason: str, now: float, task: Task | None = None) -> None:
    """`task`: its only one."""
    changed = state != job.state or reason != job.reason
    fleet.set_job_state(job, state)
    job.reason = reason
    job.finished_at = fleet.wall(now) if state in states.TERMINAL else None
    fleet.touch_job(job)
    if state in states.TERMINAL:
        unbind(fleet, job.id)
        fleet.room_makers.pop(job.id, None)
        fleet.ended_now.append(job)
        for name in job.blocked_on or ():
            waiting = fleet.dependents.get(name, [])
            if job.id in waiting:
                waiting.remove(job.id)
    if changed:
        body: dict[str, str | int | float | None] = {"state": state, "user": job.user, "reason": reason}
        if task is not None:
            body["worker"], body["attempt"] = task.worker, task.attempt
        fleet.tell(now, "job", job.id, body)


def _array_state(job: Job, cause: str) -> tuple[str, str]:
    ended = job.ended or {}
    if job.count_ended() == job.size:
        if ended.get(states.SUCCEEDED, 0) == job.size:
            return states.SUCCEEDED, ""
        if job.cancelled:
            return states.CANCELLED, "cancelled"
        if ended.get(states.UNSCHEDULABLE, 0) == job.size:
            return states.UNSCHEDULABLE, cause or job.reason
        told = ", ".join(f"{count} {state}" for state, count in sorted(ended.items()))
        late = [one.reason for one in job.dropped if one.state == states.UNSCHEDULABLE]
        return states.FAILED, "; ".join([f"of {job.size} tasks: {told}", *late[:1]])
    return (states.RUNNING, "") if job.is_placed() else (states.PENDING, "")


def blame(fleet: Fleet, worker: Worker, now: float) -> None:
    """A failure of the worker's own. After a few in a row it is left alone for a while."""
    worker.faults += 1
    if worker.faults >= FAULTS_TO_COOL:
        pause = min(COOLDOWN_MAX_S, COOLDOWN_S * 2 ** min(worker.faults - FAULTS_TO_COOL, 10))
        worker.cooling = True
        worker.cooling_until = now + pause
        fleet.timers.add(worker.cooling_until, COOLDOWN, worker.id)
        fleet.look_ahead[worker.id] = None
        fleet.index.room_changed(worker)
        fleet.announce(
            now, "worker", worker.id, state="cooling", reason=f"{worker.faults} failures of its own in a row"
        )
