"""Why a job is where it is. The same predicate that decides gives the reasons; nothing here is a second opinion."""

from collections import defaultdict
from typing import Any

import msgspec

from ostler.core.fleet import Attempt, Fleet, Job, Task, Worker, counts_as
from ostler.core.foresight.holders import Holder
from ostler.core.learning import lessons
from ostler.core.match import Reason, never_fits, unmet, unmet_by_claim
from ostler.core.queueing.holds import OTHERS, named_for
from ostler.core.workers import CLAIMS_WITHIN_S
from ostler.domain import states
from ostler.domain.resources import Request

Found = list[tuple[Worker, list[Reason]]]
"""Every worker, and what keeps it from having the job now."""


class Blocker(msgspec.Struct):
    axis: str
    reason: str
    workers: list[str]


class WorkerView(msgspec.Struct):
    id: str
    fits: bool
    reasons: list[str]


class Unmet(msgspec.Struct):
    axis: str
    reason: str
    lasting: bool
    """It would hold even if nothing ran there; else it is of this moment."""


class Alike(msgspec.Struct):
    """Workers that the same things keep from having it, in the words of the first of them."""

    workers: list[str]
    fits: bool
    unmet: list[Unmet]


class Change(msgspec.Struct, kw_only=True, omit_defaults=True):
    """`was` and `to` are in the core's own units: GPUs, MiB, thousandths, seconds."""

    kind: str
    words: str
    was: Any = msgspec.field(default=None, name="from")
    to: Any = None
    workers: list[str] = []
    """Where it would start, or what is to be opened."""


class Why(msgspec.Struct, kw_only=True):
    state: str
    summary: str
    blockers: list[Blocker] = []
    """By axis, the one that keeps most workers from it first."""
    dominant: str = ""
    """The axis of the one thing that keeps it from the nearest worker that could ever have it."""
    workers: list[WorkerView] = []
    alike: list[Alike] = []
    """The same in groups, the nearest first."""
    holders: list[Holder] = []
    """Who holds what it waits for, where it could start earliest."""
    change: str | None = None
    """The smallest change that would start it now, where there is one."""
    changes: list[Change] = []
    """Of every kind that would do, the smallest; the first is `change`."""
    estimate: str | None = None
    """When it is expected to start, or to end, in words."""
    needs: str = ""
    """Where its needs come from, in words; empty: from its spec."""
    expected: dict[str, Any] | None = None
    log_tail: str = ""
    """Of a job that has ended: the last that it wrote."""


def why(fleet: Fleet, job: Job, task: Task | None, now: float, *, waits: bool = False) -> Why:
    """Of a live job, or of one of its tasks. `waits`: of one that has had no room yet, and is nowhere by itself."""
    told = _why(fleet, job, task, states.PENDING if waits and task is None else job.state, now)
    told.needs = lessons.told(fleet, job)
    return told


def _why(fleet: Fleet, job: Job, task: Task | None, otherwise: str, now: float) -> Why:
    state = task.state if task is not None else otherwise
    if state in states.PLACED:
        return _why_placed(fleet, job, task, state, now)
    if state in states.TERMINAL:
        return Why(state=state, summary=(task.reason if task is not None else job.reason) or state)
    return _why_pending(fleet, job, task, state, now)


def _why_placed(fleet: Fleet, job: Job, task: Task | None, state: str, now: float) -> Why:
    placed = [task] if task is not None else [one for one in (job.tasks or {}).values() if one.holder is not None]
    summary = "; ".join(_placed(one) for one in placed[:5]) or f"{state}"
    if len(placed) > 5:
        summary += f"; and {len(placed) - 5} more of its tasks"
    if task is not None or not job.waiting:
        return Why(state=state, summary=summary)
    told = why_waiting(fleet, job, now)
    told.state, told.summary = state, f"{summary}; {job.count_waiting()} of its tasks wait: {told.summary}"
    return told


def _why_pending(fleet: Fleet, job: Job, task: Task | None, state: str, now: float) -> Why:
    if job.blocked_on:
        names = ", ".join(sorted(job.blocked_on)[:5])
        more = f" and {len(job.blocked_on) - 5} more" if len(job.blocked_on) > 5 else ""
        return _held_up(state, "depends_on", f"waits for {names}{more} to succeed", names)
    if task is not None and task.resting:
        return _held_up(state, "restart", task.reason)
    if task is not None and task.holder is not None:
        worker = task.holder.worker_id
        return _held_up(state, "release", f"waits until its old process on {worker} is gone", workers=[worker])
    told = why_waiting(fleet, job, now)
    if task is not None and task.reason:
        told.summary = f"{task.reason}; {told.summary}"  # it was somewhere before
    return told


def _held_up(state: str, axis: str, summary: str, reason: str = "", workers: list[str] | None = None) -> Why:
    blocker = Blocker(axis, reason or summary, workers or [])
    return Why(state=state, summary=summary, blockers=[blocker], dominant=axis)


def _making_room(fleet: Fleet, job: Job) -> str:
    """Who was told to end for its sake."""
    makers = [fleet.held[one] for one in sorted(fleet.room_makers.get(job.id, ())) if one in fleet.held]
    if not makers:
        return ""
    named = ", ".join(f"{_as_told(job, maker)} on {maker.worker_id}" for maker in makers[:3])
    return f"room is being made for it: {named} {'was' if len(makers) == 1 else 'were'} told to end"


def _as_told(job: Job, maker: Attempt) -> str:
    return OTHERS if maker.task is None else named_for(job.user, maker.task.job)


def never_within_quota(fleet: Fleet, job: Job) -> str:
    """Why a quota of its user never lets the job start, whatever else runs; "" if none does."""
    name = fleet.exceeded_quota(job.user, job.shape.request, idle=True)
    if not name:
        return ""
    nodes, milli = counts_as(job.shape.request)
    wants = f"it starts {nodes} tasks at once" if name == "running_jobs" else f"it needs {milli / 1000:g} GPUs"
    limit = getattr(fleet.quotas.of(job.user), name)
    return f"it can never start: {wants}, and the quota {name} of {job.user} is {limit}"


def _quota(fleet: Fleet, job: Job) -> str:
    """Which of its user's quotas holds the job, if one does."""
    name = fleet.exceeded_quota(job.user, job.shape.request)
    if not name:
        return ""
    running, milli = fleet.running_of.get(job.user, (0, 0))
    has = str(running) if name == "running_jobs" else f"{milli / 1000:g}"
    limit = getattr(fleet.quotas.of(job.user), name)
    return never_within_quota(fleet, job) or f"held by a quota: {job.user} has {has} of {limit} {name}"


def _placed(task: Task) -> str:
    holder = task.holder
    if holder is None:
        return task.reason or task.state
    if task.state == states.ORPHANED:
        return f"{task.id}: {task.reason}; it waits up to {task.job.terms.grace_s:.0f} s for {holder.worker_id}"
    if task.reason and task.state == states.ASSIGNED:
        return f"{task.id} is on {holder.worker_id} and has not begun: it {task.reason}"
    return f"{task.id} is {task.state} on {holder.worker_id}: {holder.why}"


def why_waiting(fleet: Fleet, job: Job, now: float) -> Why:
    """What keeps those tasks of the job waiting that wait for room."""
    request = job.shape.request
    found = _look(fleet, request, now)
    axis, summary = _cause(fleet, job, found)
    return Why(
        state=states.PENDING,
        summary=summary,
        blockers=[Blocker(axis, summary, [])] * bool(axis) + _blockers(found),
        dominant=axis or _dominant(request, found),
        workers=[WorkerView(worker.id, not reasons, [reason.text for reason in reasons]) for worker, reasons in found],
        alike=_alike(found),
    )


def _look(fleet: Fleet, request: Request, now: float) -> Found:
    return [(worker, unmet(request, worker, now)) for worker in sorted(fleet.workers.values(), key=_by_id)]


def _cause(fleet: Fleet, job: Job, found: Found) -> tuple[str, str]:
    """What keeps a job waiting, in one sentence, and its axis; no axis where the workers' own reasons are the cause."""
    for axis, kept_back in (("quota", _quota(fleet, job)), ("preemption", _making_room(fleet, job))):
        if kept_back:
            return axis, kept_back
    held = _held_for_others(fleet, job)
    able = [worker.id for worker, reasons in found if not reasons]
    is_held = len(able) >= job.shape.request.nodes and all(name in held for name in able)
    return "hold" if is_held else "", _summary(job.shape.request, found, held)


def _held_for_others(fleet: Fleet, job: Job) -> dict[str, str]:
    """By worker, the job that it is held for."""
    return {name: named_for(job.user, hold.job) for name, hold in fleet.holds.on.items() if hold.job is not job}


class Standing(msgspec.Struct):
    """Who could run something now; and where nobody could, why not."""

    workers: list[str]
    why: str = ""


def who_could(request: Request, workers: list[Worker], now: float) -> Standing:
    """Workers that only claim count as able if they would get it by asking, and do ask."""
    found = [(worker, _unmet_in_its_way(request, worker, now)) for worker in sorted(workers, key=_by_id)]
    able = [worker.id for worker, reasons in found if not reasons]
    return Standing(able, "" if able else _summary(request, found, {}))


def _unmet_in_its_way(request: Request, worker: Worker, now: float) -> list[Reason]:
    if not worker.only_claims:
        return unmet(request, worker, now)
    silent_s = now - worker.last_contact
    away = [Reason("health", f"{worker.id} has not been heard of for {silent_s:.0f} s")]
    return (away if silent_s >= CLAIMS_WITHIN_S else []) + unmet_by_claim(request, worker, now)


def why_unschedulable(fleet: Fleet, job: Job, now: float) -> str:
    """The reasons that held it at this moment, in one sentence."""
    _, cause = _cause(fleet, job, _look(fleet, job.shape.request, now))
    return f"not placed within {job.terms.scheduling_timeout_s:g} s: {cause}"


def _summary(request: Request, found: Found, held: dict[str, str]) -> str:
    if not found:
        return "no worker has registered yet; start one with `ostler worker --hub URL`"
    never = [(worker, never_fits(request, worker)) for worker, _ in found]
    if all(reasons for _, reasons in never):
        nearest = _nearest(never)
        return f"no registered worker could ever run this, even empty; the nearest: {_told(nearest)}"
    possible = {worker.id for worker, reasons in never if not reasons}
    waiting = [(worker, reasons) for worker, reasons in found if worker.id in possible]
    ready = [worker.id for worker, reasons in waiting if not reasons]
    if request.nodes > 1:
        told = f"needs {request.nodes} workers at once"
        if len(waiting) < request.nodes:
            return f"{told}, and only {len(waiting)} of the registered ones could ever take it"
        return (
            f"{told}; {len(ready)} of the {len(waiting)} that could take it {'has' if len(ready) == 1 else 'have'} room"
        )
    if ready:
        kept = [f"{name} is held for {held[name]}" for name in ready[:3] if name in held]
        free = [name for name in ready[:3] if name not in held]
        return "; ".join(kept) if kept and not free else f"it fits on {', '.join(free)} and is next in line there"
    return f"waits for room: {_told(_nearest(waiting))}"


def _nearest(found: Found) -> list[Reason]:
    return min((reasons for _, reasons in found), key=len, default=[])


def _told(reasons: list[Reason]) -> str:
    return "; ".join(reason.text for reason in reasons)


def _blockers(found: Found) -> list[Blocker]:
    """By axis, the one that closes most workers first, each with the words of its nearest miss."""
    by_axis: dict[str, list[tuple[int, str, str]]] = defaultdict(list)
    for worker, reasons in found:
        for reason in reasons:
            by_axis[reason.axis].append((len(reasons), reason.text, worker.id))
    ordered = sorted(by_axis.items(), key=lambda item: (-len(item[1]), item[0]))
    return [Blocker(axis, min(lines)[1], sorted(line[2] for line in lines)) for axis, lines in ordered]


def _dominant(request: Request, found: Found) -> str:
    possible = [(worker, reasons) for worker, reasons in found if reasons and not never_fits(request, worker)]
    nearest = _nearest(possible or [one for one in found if one[1]] or [])
    return nearest[0].axis if nearest else ""


def _alike(found: Found) -> list[Alike]:
    groups: dict[tuple[str, ...], Alike] = {}
    for worker, reasons in found:
        key = tuple(reason.text.replace(worker.id, "\0") for reason in reasons)
        if key not in groups:
            told = [Unmet(reason.axis, reason.text, reason.lasting) for reason in reasons]
            groups[key] = Alike([], not reasons, told)
        groups[key].workers.append(worker.id)
    return sorted(groups.values(), key=lambda group: (len(group.unmet), _lasting(group), -len(group.workers)))


def _lasting(group: Alike) -> int:
    return sum(one.lasting for one in group.unmet)


def _by_id(worker: Worker) -> str:
    return worker.id
