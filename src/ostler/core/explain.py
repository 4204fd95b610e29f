"""Why a job is where it is. The same predicate that decides gives the reasons; nothing here is a second opinion."""

from collections import defaultdict
from collections.abc import Iterator

import msgspec

from ostler.core.fleet import Fleet, Job, Task, Worker
from ostler.core.match import Reason, count, never_fits, unmet, unmet_by_claim
from ostler.core.workers import CLAIMS_WITHIN_S
from ostler.domain import states
from ostler.domain.quantities import show_cores, show_mib
from ostler.domain.resources import Request


class Blocker(msgspec.Struct):
    axis: str
    reason: str
    workers: list[str]


class WorkerView(msgspec.Struct):
    id: str
    fits: bool
    reasons: list[str]


class Why(msgspec.Struct, kw_only=True):
    state: str
    summary: str
    blockers: list[Blocker] = []
    workers: list[WorkerView] = []
    change: str | None = None
    """The smallest change that would start it now, where there is one."""
    estimate: str | None = None


def why(fleet: Fleet, job: Job, task: Task | None, now: float) -> Why:
    """Of a live job, or of one of its tasks."""
    state = task.state if task is not None else job.state
    if state in (states.ASSIGNED, states.RUNNING, states.ORPHANED):
        placed = [task] if task is not None else [one for one in (job.tasks or {}).values() if one.holder is not None]
        return Why(state=state, summary="; ".join(_placed(one) for one in placed[:5]) or f"{state}")
    if state in states.TERMINAL:
        return Why(state=state, summary=(task.reason if task is not None else job.reason) or state)
    if job.blocked_on:
        names = ", ".join(sorted(job.blocked_on)[:5])
        return Why(state=state, summary=f"waits for {names} to succeed", blockers=[Blocker("depends_on", names, [])])
    if task is not None and task.resting:
        return Why(state=state, summary=task.reason, blockers=[Blocker("restart", task.reason, [])])
    if task is not None and task.holder is not None:
        held = f"waits until its old process on {task.holder.worker_id} is gone"
        return Why(state=state, summary=held, blockers=[Blocker("release", held, [task.holder.worker_id])])
    told = why_waiting(fleet, job.shape.request, now)
    quota = _quota(fleet, job)
    if quota:
        told.summary = quota
        told.blockers.insert(0, Blocker("quota", quota, []))
    return told


def _quota(fleet: Fleet, job: Job) -> str:
    """Which of its user's quotas keeps it back, if one does."""
    if fleet.within_quota(job.user, job.shape.bit):
        return ""
    quota = fleet.quotas.of(job.user)
    running = fleet.running_of.get(job.user, (0, 0))[0]
    if quota.running_jobs and running + job.shape.request.nodes > quota.running_jobs:
        return f"held by a quota: {job.user} has {running} of {quota.running_jobs} running_jobs"
    return f"held by a quota: {job.user} has {fleet.gpus_used(job.user):g} of {quota.running_gpus} running_gpus"


def _placed(task: Task) -> str:
    holder = task.holder
    if holder is None:
        return task.reason or task.state
    if task.state == states.ORPHANED:
        return f"{task.id}: {task.reason}; it waits up to {task.job.terms.grace_s:.0f} s for {holder.worker_id}"
    return f"{task.id} is {task.state} on {holder.worker_id}: {holder.why}"


def why_waiting(fleet: Fleet, request: Request, now: float) -> Why:
    found = [(worker, unmet(request, worker, now)) for worker in sorted(fleet.workers.values(), key=_by_id)]
    return Why(
        state=states.PENDING,
        summary=_summary(request, found),
        blockers=_blockers(found),
        workers=[WorkerView(worker.id, not reasons, [reason.text for reason in reasons]) for worker, reasons in found],
        change=smallest_change(fleet, request, now),
    )


class Standing(msgspec.Struct):
    """Who could run something now; and where nobody could, why not."""

    workers: list[str]
    why: str = ""


def who_could(request: Request, workers: list[Worker], now: float) -> Standing:
    """Workers that only claim count as able if they would get it by asking, and do ask."""
    found = [(worker, _unmet_in_its_way(request, worker, now)) for worker in sorted(workers, key=_by_id)]
    able = [worker.id for worker, reasons in found if not reasons]
    return Standing(able, "" if able else _summary(request, found))


def _unmet_in_its_way(request: Request, worker: Worker, now: float) -> list[Reason]:
    if not worker.only_claims:
        return unmet(request, worker, now)
    silent_s = now - worker.last_contact
    away = [Reason("health", f"{worker.id} has not been heard of for {silent_s:.0f} s")]
    return (away if silent_s >= CLAIMS_WITHIN_S else []) + unmet_by_claim(request, worker, now)


def why_unschedulable(fleet: Fleet, job: Job, now: float) -> str:
    """The reasons that held it at this moment, in one sentence."""
    waited = f"not placed within {job.terms.scheduling_timeout_s:g} s: "
    return waited + why_waiting(fleet, job.shape.request, now).summary


def _summary(request: Request, found: list[tuple[Worker, list[Reason]]]) -> str:
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
        told = f"needs {request.nodes} workers at once; {len(ready)} of the {len(waiting)} that could take it have room"
        return told if len(waiting) >= request.nodes else f"no registered fleet could ever run this: {told}"
    if ready:
        return f"it fits on {', '.join(ready[:3])} and is next in line there"
    return f"waits for room: {_told(_nearest(waiting))}"


def _nearest(found: list[tuple[Worker, list[Reason]]]) -> list[Reason]:
    return min((reasons for _, reasons in found), key=len)


def _told(reasons: list[Reason]) -> str:
    return "; ".join(reason.text for reason in reasons)


def _blockers(found: list[tuple[Worker, list[Reason]]]) -> list[Blocker]:
    """By axis, the one that closes most workers first, each with the words of its nearest miss."""
    by_axis: dict[str, list[tuple[int, str, str]]] = defaultdict(list)
    for worker, reasons in found:
        for reason in reasons:
            by_axis[reason.axis].append((len(reasons), reason.text, worker.id))
    ordered = sorted(by_axis.items(), key=lambda item: (-len(item[1]), item[0]))
    return [Blocker(axis, min(lines)[1], sorted(line[2] for line in lines)) for axis, lines in ordered]


def smallest_change(fleet: Fleet, request: Request, now: float) -> str | None:
    """One need relaxed on one axis that some worker could take now; the least relaxation of each kind, found by
    the matcher."""
    for describe, relaxed, worker in _relaxations(fleet, request):
        if not unmet(relaxed, worker, now):
            return f"{describe} (on {worker.id})"
    for worker in sorted(fleet.workers.values(), key=_by_id):
        reasons = unmet(request, worker, now)
        if worker.draining and len(reasons) == 1 and reasons[0].axis == "health":
            return f"resume {worker.id}"
    return None


def _relaxations(fleet: Fleet, request: Request) -> Iterator[tuple[str, Request, Worker]]:
    """Candidates, gentlest first within each kind: what each worker has free is the most that could be asked of it."""
    workers = sorted(fleet.workers.values(), key=_by_id)
    with_gpus = sorted(workers, key=lambda worker: -worker.room.free_devices())
    for worker in with_gpus:
        free = worker.room.free_devices()
        if 0 < free < request.gpu_count:
            gpus = count(free, "GPU")
            yield f"ask for {gpus} instead of {request.gpu_count}", _with(request, gpu_count=free), worker
    for worker in sorted(workers, key=lambda worker: -_free_vram(request, worker)):
        vram = _free_vram(request, worker)
        if 0 < vram < request.vram_mib:
            yield (
                f"ask for {show_mib(vram)} of VRAM instead of {show_mib(request.vram_mib)}",
                _with(request, vram_mib=vram),
                worker,
            )
    for worker in sorted(workers, key=lambda worker: -worker.room.cores_milli):
        cores = worker.room.cores_milli
        if 0 < cores < request.cores_milli:
            told = f"ask for {show_cores(cores)} cores instead of {show_cores(request.cores_milli)}"
            yield told, _with(request, cores_milli=cores), worker
    for worker in sorted(workers, key=lambda worker: -worker.room.memory_mib):
        memory = worker.room.memory_mib
        if 0 < memory < request.memory_mib:
            told = f"ask for {show_mib(memory)} of memory instead of {show_mib(request.memory_mib)}"
            yield told, _with(request, memory_mib=memory), worker
    for dropped in request.labels:
        rest = tuple(constraint for constraint in request.labels if constraint != dropped)
        yield from ((f"drop the constraint '{dropped}'", _with(request, labels=rest), worker) for worker in workers)
    if request.gpu_type:
        yield from (
            (f"take any GPU type, not only {request.gpu_type}", _with(request, gpu_type=""), worker)
            for worker in workers
        )
    if request.backend:
        yield from (
            (f"take any backend, not only {request.backend}", _with(request, backend=""), worker) for worker in workers
        )


def _free_vram(request: Request, worker: Worker) -> int:
    """The most VRAM that this many GPUs, or one shared GPU, could be granted there now."""
    room = worker.room
    if request.shares_gpu:
        return max(room.vram_mib, default=0)
    free = sorted((room.vram_mib[i] for i, users in enumerate(room.users) if users == 0), reverse=True)
    return sum(free[: request.gpu_count]) if len(free) >= request.gpu_count else 0


def _with(request: Request, **changes: object) -> Request:
    return msgspec.structs.replace(request, **changes)


def _by_id(worker: Worker) -> str:
    return worker.id
