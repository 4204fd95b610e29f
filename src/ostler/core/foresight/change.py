"""The smallest change that would start a job now: of every kind that would do, the least of it.

Candidates come from the matcher; whether one really starts the job is tried with the real core on a copy, with all
that waits beside it, quotas, holds and order included. Kinds are told in this order, because a person would rather ask
for a little less than give up a condition, and rather that than have something done to the fleet:

    gpu_count, vram, gpu_share, cores, memory, nodes      ask for less
    labels, gpu_type, backend, hosts, preference          give up one condition
    run_time                                              promise to end before a machine is needed by its holder
    depends_on, quota, priority                           go ahead of, or without, something
    resume, return, slots                                 open a worker that is there
    machine                                               add one, or as few as suffice
"""

import math
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import NamedTuple

import msgspec

from ostler.core.events import (
    CancelRequested,
    DrainRequested,
    JobsSubmitted,
    NewJob,
    WorkerBeat,
    WorkerRegistered,
)
from ostler.core.fleet import Fleet, Job, Worker
from ostler.core.foresight import wanted
from ostler.core.foresight.explain import Change
from ostler.core.foresight.trial import Make, Trial, Tried, reasons_now
from ostler.core.match import count, unmet_room
from ostler.core.queueing.bound import rebind, unbind
from ostler.core.step import step
from ostler.domain import states
from ostler.domain.job import Terms
from ostler.domain.quantities import show_cores, show_mib
from ostler.domain.quota import Quotas
from ostler.domain.resources import Request
from ostler.domain.worker import ActiveTask, Slots

MOST_MACHINES = 16
MOST_QUOTA = 4096

TRIALS_OF_ONE_KIND = 4

AMOUNTS = (
    ("gpu_count", "gpu_count", "gpu_count"),
    ("vram", "vram_mib", "vram"),
    ("gpu_share", "gpu_milli", "vram"),
    ("cores", "cores_milli", "cores"),
    ("memory", "memory_mib", "memory"),
)
"""Kinds that are amounts: the field of the request, and the matcher's axis."""


class Candidate(NamedTuple):
    change: Change
    make: Make


def smallest(fleet: Fleet, job: Job, now: float, tried: Tried) -> list[Change]:
    """In order of preference, one of each kind that would do. Nothing is changed but on copies."""
    if not job.waiting:
        return []
    kept = unbind(fleet, job.id)  # what is kept for it is its own
    seen = _Seen(fleet, job, now)
    rebind(fleet, job.id, kept)
    trial = Trial(fleet, job, now, tried)
    found = [first for kind in _kinds(seen) if (first := _first(trial, kind)) is not None]
    found += [change for search in (_quota, _priority) if (change := search(seen, trial)) is not None]
    machine = _machine(seen, trial, 1 if found else MOST_MACHINES)
    if machine is not None:
        found.append(machine)
    return sorted(found, key=lambda change: ORDER.index(change.kind))


def _first(trial: Trial, candidates: Iterator["Candidate"]) -> Change | None:
    return next((one.change for one in islice(candidates, TRIALS_OF_ONE_KIND) if trial.starts(one.make)), None)


ORDER = (
    *("gpu_count", "vram", "gpu_share", "cores", "memory", "nodes"),
    *("labels", "gpu_type", "backend", "hosts", "preference", "run_time", "depends_on", "quota", "priority"),
    *("resume", "return", "slots", "machine"),
)


class _Seen:
    """What the matcher says of every worker, with what is kept for the job given back."""

    def __init__(self, fleet: Fleet, job: Job, now: float) -> None:
        self.fleet, self.job, self.now = fleet, job, now
        self.request = job.shape.request
        self.able: list[Worker] = []
        self.by_axes: dict[frozenset[str], list[Worker]] = {}
        self._most: dict[tuple[object, str], int] = {}
        for worker in sorted(fleet.workers.values(), key=lambda worker: worker.id):
            reasons = reasons_now(self.request, worker, now)
            if reasons:
                self.by_axes.setdefault(frozenset(reason.axis for reason in reasons), []).append(worker)
            else:
                self.able.append(worker)
        self.amounts = {kind: self._amounts(field, axis) for kind, field, axis in AMOUNTS}

    def only(self, axis: str) -> list[Worker]:
        """Those that nothing but this keeps from it."""
        return self.by_axes.get(frozenset((axis,)), [])

    def fit(self, request: Request, among: Iterable[Worker]) -> list[Worker]:
        return [worker for worker in among if not reasons_now(request, worker, self.now)]

    def _amounts(self, field: str, axis: str) -> list[tuple[int, str]]:
        """Of this field, what could be asked for instead, the most first, and the last worker that makes it so many."""
        asked = getattr(self.request, field)
        if not asked:
            return []
        found = [(self.most(worker, field), worker.id) for worker in self.only(axis)]
        offers = [(asked, worker.id) for worker in self.able] + sorted(found, key=lambda one: (-one[0], one[1]))
        enough = offers[self.request.nodes - 1 :]
        return list({amount: (amount, name) for amount, name in reversed(enough)}.values())[::-1]

    def most(self, worker: Worker, field: str) -> int:
        """Once for all workers in one state."""
        key = (id(self.fleet.index.state_of(worker.id)), field)
        if key not in self._most:
            self._most[key] = _most_of(self.request, worker, field)
        return self._most[key]


def _most_of(request: Request, worker: Worker, field: str) -> int:
    """The most that could be asked for of one field where all else is as it is; 0: nothing."""

    def fits(amount: int) -> bool:
        return not unmet_room(_with(request, **{field: amount}), worker.id, worker.room)

    asked = getattr(request, field)
    if field == "gpu_count":  # fewer of them have less memory together: less is not always enough
        return next((fewer for fewer in range(min(asked - 1, worker.room.free_devices()), 0, -1) if fits(fewer)), 0)
    if asked < 2 or not fits(1):
        return 0
    low, high = 1, asked
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _kinds(seen: _Seen) -> Iterator[Iterator[Candidate]]:
    if seen.job.blocked_on:
        yield _dependencies(seen)
        return
    for kind, field, _ in AMOUNTS:
        yield _less(seen, kind, field)
    yield _fewer_nodes(seen)
    yield from _conditions(seen)
    yield _run_time(seen)
    yield _resumed(seen)
    yield _returned(seen)
    yield _slots(seen)


def _with_needs(seen: _Seen, **needs: object) -> Make:
    return partial(_again, seen, _with(seen.request, **needs), seen.job.terms)


def _again(seen: _Seen, request: Request, terms: Terms) -> Job:
    """As its owner would do it: cancelled, and submitted again with other words."""
    fleet, job = seen.fleet, seen.job
    step(fleet, CancelRequested(ref=0, job_id=job.id), seen.now)
    size = job.size if not job.is_gang else request.nodes if request.nodes > 1 else 0
    new = NewJob(
        id=f"{job.id}-",
        user=job.user,
        name="",
        spec=b"",
        request=request,
        terms=terms,
        size=size,
        snapshot=job.snapshot,
        kind=job.kind,
    )
    step(fleet, JobsSubmitted(ref=0, jobs=[new]), seen.now)
    return fleet.jobs[new.id]


def _less(seen: _Seen, kind: str, field: str) -> Iterator[Candidate]:
    asked = getattr(seen.request, field)
    for amount, name in seen.amounts[kind]:
        if 0 < amount < asked:
            words = f"ask for {_amount(kind, amount)} instead of {_amount(kind, asked, bare=True)}"
            told = f"{words} (on {name})" if seen.request.nodes == 1 else words
            change = Change(kind=kind, words=told, was=asked, to=amount, workers=[name])
            yield Candidate(change, _with_needs(seen, **{field: amount}))


def _amount(kind: str, amount: int, *, bare: bool = False) -> str:
    """`bare`: beside the same amount with its noun."""
    match kind:
        case "gpu_count":
            return str(amount) if bare else count(amount, "GPU")
        case "cores":
            return show_cores(amount) + ("" if bare else " core" if amount == 1000 else " cores")
        case "gpu_share":
            return f"{amount / 1000:g}" + ("" if bare else " of a GPU")
        case _:
            noun = "VRAM" if kind == "vram" else "memory"
            return show_mib(amount) + ("" if bare else f" of {noun}")


def _fewer_nodes(seen: _Seen) -> Iterator[Candidate]:
    nodes, ready = seen.request.nodes, len(seen.able)
    for fewer in range(min(nodes - 1, ready), 0, -1):
        words = f"ask for {count(fewer, 'node')} instead of {nodes}"
        change = Change(kind="nodes", words=words, was=nodes, to=fewer)
        yield Candidate(change, _with_needs(seen, nodes=fewer))


def _conditions(seen: _Seen) -> Iterator[Iterator[Candidate]]:
    request = seen.request
    for rule in request.labels:
        rest = tuple(one for one in request.labels if one != rule)
        yield _given_up(seen, "labels", f"drop the constraint '{rule}'", str(rule), labels=rest)
    if request.gpu_type:
        told = request.gpu_type.replace("|", " or ")
        yield _given_up(seen, "gpu_type", f"take any GPU type, not only {told}", request.gpu_type, gpu_type="")
    if request.backend:
        told = f"take any backend, not only {request.backend}"
        yield _given_up(seen, "backend", told, request.backend, backend="")
    for field, told in (("allowed_hosts", "any host, not only"), ("denied_hosts", "also the hosts")):
        hosts = getattr(request, field)
        if hosts:
            yield _given_up(seen, "hosts", f"take {told} {', '.join(hosts)}", list(hosts), axis="host", **{field: ()})
    if request.cuda_first_s:
        told = "do not wait for a CUDA worker"
        yield _given_up(seen, "preference", told, request.cuda_first_s, cuda_first_s=0.0)


def _given_up(
    seen: _Seen, kind: str, words: str, was: object, *, axis: str = "", **needs: object
) -> Iterator[Candidate]:
    found = seen.fit(_with(seen.request, **needs), seen.only(axis or kind))
    if found and len(found) + len(seen.able) >= seen.request.nodes:
        told = f"{words} (on {found[0].id})" if seen.request.nodes == 1 else words
        change = Change(kind=kind, words=told, was=was, workers=[found[0].id])
        yield Candidate(change, _with_needs(seen, **needs))


def _run_time(seen: _Seen) -> Iterator[Candidate]:
    """A machine that is held for another may be had by what ends in time."""
    terms = seen.job.terms
    holds = [seen.fleet.holds.on.get(worker.id) for worker in seen.able]
    until = {math.floor(hold.free_until - seen.now) for hold in holds if hold is not None and hold.job is not seen.job}
    for limit in sorted((one for one in until if one >= 1), reverse=True):
        if terms.max_runtime_s and limit >= terms.max_runtime_s and terms.limited:
            continue
        shorter = msgspec.structs.replace(terms, max_runtime_s=float(limit), limited=True)
        words = f"promise that it ends within {_seconds(limit)} (max_runtime)"
        was = terms.max_runtime_s if terms.limited else None
        change = Change(kind="run_time", words=words, was=was, to=limit)
        yield Candidate(change, partial(_again, seen, seen.request, shorter))


def _seconds(seconds: int) -> str:
    hours, minutes = seconds // 3600, seconds % 3600 // 60
    return " ".join([f"{hours} h"] * bool(hours) + [f"{minutes} min"] * bool(minutes)) or f"{seconds} s"


def _dependencies(seen: _Seen) -> Iterator[Candidate]:
    names = sorted(seen.job.blocked_on or ())
    words = f"do not wait for {', '.join(names[:3])}" + (f" and {len(names) - 3} more" if len(names) > 3 else "")

    change = Change(kind="depends_on", words=words, was=names, to=[])
    yield Candidate(change, partial(_again, seen, seen.request, seen.job.terms))


def _resumed(seen: _Seen) -> Iterator[Candidate]:
    closed = [worker for worker in seen.only("health") if worker.draining and worker.connected and not worker.leaving]
    missing = seen.request.nodes - len(seen.able)
    for group in _by_state(seen, closed, missing):
        names = [worker.id for worker in group]

        def resume(names: list[str] = names) -> None:
            for name in names:
                step(seen.fleet, DrainRequested(ref=0, worker_id=name, draining=False), seen.now)

        yield Candidate(Change(kind="resume", words=f"resume {', '.join(names)}", workers=names), resume)


def _by_state(seen: _Seen, workers: list[Worker], size: int) -> Iterator[list[Worker]]:
    """So many at a time, one of each state first: those in one state are alike."""
    one_each = {id(seen.fleet.index.state_of(worker.id)): worker for worker in reversed(workers)}
    if size <= 1:
        yield from ([worker] for worker in one_each.values())
    elif len(workers) >= size:
        yield workers[:size]


def _returned(seen: _Seen) -> Iterator[Candidate]:
    away = [worker for worker in seen.only("health") if not worker.connected and not worker.draining]
    for group in _by_state(seen, away, seen.request.nodes - len(seen.able)):
        names = [worker.id for worker in group]

        def back(group: list[Worker] = group) -> None:
            for worker in group:
                _register_again(seen.fleet, worker, seen.now)

        yield Candidate(Change(kind="return", words=f"bring {', '.join(names)} back", workers=names), back)


def _register_again(fleet: Fleet, worker: Worker, now: float) -> None:
    """With all that it had."""
    account = [
        ActiveTask(task_id=held.task_id, attempt=held.id) for held in worker.attempts.values() if held.phase != "bound"
    ]
    slots = worker.slots or Slots(batch_total=_cores(worker), service_total=_cores(worker))
    session = worker.newest_session + 1
    registered = WorkerRegistered(
        worker_id=worker.id,
        session=session,
        capabilities=worker.capabilities,
        active_tasks=account,
        boot_id=worker.boot_id,
        is_plain=worker.is_plain,
    )
    step(fleet, registered, now)
    step(fleet, WorkerBeat(worker_id=worker.id, session=session, slots=slots), now)


def _cores(worker: Worker) -> int:
    return max(1, worker.offer.cores_milli // 1000)


def _slots(seen: _Seen) -> Iterator[Candidate]:
    pool = seen.request.pool
    if seen.request.nodes > 1:
        return
    for worker in [one[0] for one in _by_state(seen, seen.only("slots"), 1)]:
        if worker.slots is None or worker.slots_left(pool) > 0:
            continue
        total = worker.slots.total(pool)
        enough = total + 1 - worker.slots_left(pool)
        words = f"give {worker.id} {count(enough, f'{pool} slot')} instead of {total}"

        def more(worker: Worker = worker, enough: int = enough) -> None:
            assert worker.slots is not None
            slots = msgspec.structs.replace(worker.slots, **{f"{pool}_total": enough})
            step(seen.fleet, WorkerBeat(worker_id=worker.id, session=worker.session, slots=slots), seen.now)

        yield Candidate(Change(kind="slots", words=words, was=total, to=enough, workers=[worker.id]), more)


def _quota(seen: _Seen, trial: Trial) -> Change | None:
    job, fleet = seen.job, seen.fleet
    name = fleet.exceeded_quota(job.user, seen.request)
    if job.blocked_on or not name:
        return None
    quota = fleet.quotas.of(job.user)
    running, used = fleet.running_of.get(job.user, (0, 0))[0], fleet.gpus_used(job.user)
    was: int = getattr(quota, name)

    def raised(value: int) -> None:
        higher = msgspec.structs.replace(quota, **{name: value})
        fleet.set_quotas(Quotas(default=fleet.quotas.default, users={**fleet.quotas.users, job.user: higher}))

    least = max(was + 1, running + 1 if name == "running_jobs" else math.ceil(used))
    value = trial.least(range(least, least + MOST_QUOTA), raised)
    words = f"raise the quota {name} of {job.user} from {was} to {value}"
    return None if value is None else Change(kind="quota", words=words, was=was, to=value)


def _priority(seen: _Seen, trial: Trial) -> Change | None:
    """Where there is room and others come first."""
    own = seen.job.terms.priority
    if len(seen.able) < seen.request.nodes or seen.job.blocked_on:
        return None
    others = {job.terms.priority for job in seen.fleet.jobs.values() if job.state == states.PENDING}
    higher = sorted({priority + more for priority in others for more in (0, 1) if priority + more > own})

    def raised(priority: int) -> Job:
        return _again(seen, seen.request, msgspec.structs.replace(seen.job.terms, priority=priority))

    value = trial.least(higher, raised) if higher else None
    if value is None:
        return None
    return Change(kind="priority", words=f"raise its priority from {own} to {value}", was=own, to=value)


def _machine(seen: _Seen, trial: Trial, most: int) -> Change | None:
    """One; or, where nothing else would do, as few as suffice beside all that others would have of them."""
    if seen.job.blocked_on or not seen.fleet.within_quota(seen.job.user, seen.job.shape.bit):
        return None

    def added(number: int) -> None:
        add_machines(seen.fleet, seen.request, number, seen.now)

    least = max(1, seen.request.nodes - len(seen.able))
    number = trial.least(range(least, least + most), added)
    if number is None:
        return None
    machine = wanted.words(seen.request)
    each = "" if machine == wanted.ANY else f", each {machine}"
    words = f"add {machine}" if number == 1 else f"add {number} machines{each}"
    return Change(kind="machine", words=words, to={"count": number, "machine": wanted.machine_for(seen.request)})


def add_machines(fleet: Fleet, request: Request, number: int, now: float) -> None:
    for position in range(number):
        name = f"+{position}"
        machine = wanted.machine_for(request)
        step(fleet, WorkerRegistered(worker_id=name, session=1, capabilities=machine), now)
        step(fleet, WorkerBeat(worker_id=name, session=1, slots=wanted.slots_for(request)), now)


def _with(request: Request, **changes: object) -> Request:
    return msgspec.structs.replace(request, **changes)
