"""Random (fleet, queue, job) triples: whether the smallest changes that are named for the job are true, and the
smallest. What is named is made true here by the events that a person would cause, and so is everything smaller."""

import random
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import msgspec

from ostler.core.check import check
from ostler.core.effects import AssignTask, CancelTask, Effect
from ostler.core.events import (
    CancelRequested,
    DrainRequested,
    Event,
    JobsSubmitted,
    NewJob,
    TaskAccepted,
    TaskEnded,
    TimePassed,
    WorkerBeat,
    WorkerLeft,
    WorkerRegistered,
)
from ostler.core.fleet import Fleet, Job
from ostler.core.foresight.change import smallest
from ostler.core.foresight.explain import Change
from ostler.core.foresight.trial import Tried
from ostler.core.learning.kinds import kind_of
from ostler.core.persist import take_changes
from ostler.core.placing.place import settle, settled
from ostler.core.step import step
from ostler.domain.job import JobSpec, Terms
from ostler.domain.quota import Quota, Quotas
from ostler.domain.resources import Request
from ostler.domain.worker import ActiveTask, Capabilities, Slots

FIELDS = {
    "gpu_count": "gpu_count",
    "vram": "vram_mib",
    "gpu_share": "gpu_milli",
    "cores": "cores_milli",
    "memory": "memory_mib",
    "nodes": "nodes",
}


class Stand:
    """A fleet by itself: every batch is the hub's, and nobody is ever late."""

    def __init__(self) -> None:
        self.now = 1000.0
        attempts = count(1)
        self.fleet = Fleet(lambda: f"a{next(attempts)}")
        self._sessions = count(1)
        self._jobs = count(1)

    def turn(self, *events: Event) -> list[Effect]:
        effects = [effect for event in (*events, TimePassed()) for effect in step(self.fleet, event, self.now)]
        effects += settle(self.fleet, self.now)
        take_changes(self.fleet, self.now)
        return effects

    def follow(self, effects: list[Effect]) -> None:
        """Workers accept what they are given, and end what they are told to end."""
        while effects:
            said: list[Event] = []
            for one in effects:
                if isinstance(one, AssignTask):
                    names = {"worker_id": one.worker_id, "task_id": one.task_id, "attempt": one.attempt}
                    said.append(TaskAccepted(session=one.session, **names))
                elif isinstance(one, CancelTask):
                    end = TaskEnded(
                        worker_id=one.worker_id, session=one.session, task_id=one.task_id, state="cancelled"
                    )
                    end.attempt = one.attempt
                    said.append(end)
            effects = self.turn(*said) if said or not settled(self.fleet) else []

    def worker(self, name: str, offer: Capabilities, slots: int) -> None:
        session = next(self._sessions)
        self.turn(WorkerRegistered(worker_id=name, session=session, capabilities=offer, boot_id="boot"))
        beat = WorkerBeat(worker_id=name, session=session, slots=Slots(batch_total=slots, service_total=slots))
        self.follow(self.turn(beat))

    def submit(self, spec: JobSpec) -> None:
        spec.id = f"j{next(self._jobs)}"
        spec.depends_on = [name for name in spec.depends_on if name in self.fleet.jobs]
        new = NewJob(
            id=spec.id,
            user=spec.user_id,
            name=spec.name,
            spec=b"{}",
            request=spec.request(),
            terms=spec.terms(),
            size=spec.size(),
            depends_on=spec.depends_on,
            kind=kind_of(spec),
        )
        self.follow(self.turn(JobsSubmitted(ref=1, jobs=[new])))

    def wait(self, seconds: float) -> None:
        """Deadline by deadline; nothing is heard of anybody, and nobody minds."""
        until = self.now + seconds
        while self.now < until:
            due = self.fleet.timers.next_at()
            self.now = min(until, max(self.now, until if due is None else due))
            for worker in self.fleet.workers.values():
                worker.last_contact = self.now
            self.follow(self.turn())


def stand_of(seed: int) -> Stand:
    rng = random.Random(f"triple {seed}")
    stand = Stand()
    if rng.random() < 0.25:
        stand.fleet.set_quotas(
            Quotas(default=Quota(running_jobs=rng.choice((0, 2, 5)), running_gpus=rng.choice((0, 3))))
        )
    for number in range(rng.choice((1, 2, 4, 8))):
        stand.worker(f"w{number}", random_offer(rng), rng.choice((1, 2, 8, 64)))
    for number in range(rng.choice((3, 10, 30))):
        if number == 2:
            _close_some(rng, stand)
        stand.submit(random_spec(rng))
        if rng.random() < 0.1:
            stand.wait(rng.choice((30.0, 400.0, 900.0)))
    stand.wait(rng.choice((1.0, 1000.0)))
    check(stand.fleet, stand.now, after_pass=True)
    return stand


def _close_some(rng: random.Random, stand: Stand) -> None:
    for worker in list(stand.fleet.workers.values()):
        luck = rng.random()
        if luck < 0.2:
            stand.follow(stand.turn(DrainRequested(ref=1, worker_id=worker.id, draining=True)))
        elif luck < 0.3:
            stand.follow(stand.turn(WorkerLeft(worker_id=worker.id, session=worker.session)))


def random_offer(rng: random.Random) -> Capabilities:
    gpus = rng.choice((0, 1, 2, 4, 8))
    return Capabilities(
        gpu_backend=rng.choice(("nvidia", "nvidia", "metal")) if gpus else "cpu",
        gpu_count=gpus,
        gpu_type=rng.choice(("A100", "L4", "H100")) if gpus else "",
        vram_gb=gpus * rng.choice((8.0, 24.0, 80.0)),
        cpu_count=rng.choice((2, 8, 32.5)),
        memory_gb=rng.choice((4.0, 31.3, 256.0)),
        labels=rng.choice(({}, {"zone": "eu"}, {"zone": "us", "driver": "550"})),
        hostname=rng.choice(("", "alpha", "beta")),
    )


def random_spec(rng: random.Random) -> JobSpec:
    """Of every axis something, or of one more than most machines have."""
    return _greedy(rng) if rng.random() < 0.5 else _of_everything(rng)


def _greedy(rng: random.Random) -> JobSpec:
    spec = JobSpec(
        command=["true"],
        name=rng.choice(("train", "eval")),
        user_id=rng.choice(("ann", "bob")),
        priority=rng.choice((0, 0, 3)),
        max_runtime_hours=rng.choice((0.0, 0.1, 0.5, 5.0)),
        node_count=rng.choice((1, 1, 1, 2)),
    )
    match rng.randrange(7):
        case 0:
            spec.gpu_count = rng.randint(1, 9)
        case 1:
            spec.gpu_count, spec.min_vram_gb = rng.randint(1, 4), rng.uniform(10, 200)
        case 2:
            spec.min_vram_gb = rng.uniform(5, 100)
        case 3:
            spec.min_cpu_cores = rng.uniform(1, 40)
        case 4:
            spec.min_memory_gb = rng.uniform(1, 300)
        case 5:
            spec.labels = rng.choice((["zone = eu"], ["zone = eu", "driver >= 500"], ["zone = mars"]))
        case _:
            pass
    return spec


def _of_everything(rng: random.Random) -> JobSpec:
    kind = rng.random()
    gpus = rng.choice((1, 1, 2, 4, 9)) if kind < 0.5 else 0
    several = rng.random()
    return JobSpec(
        command=["true"],
        name=rng.choice(("", "train", "eval")),
        user_id=rng.choice(("ann", "bob")),
        job_tier=rng.choice(("data_processing", "evaluation", "training")),
        priority=rng.choice((0, 0, 0, 5)),
        gpu_count=gpus,
        gpu_type=rng.choice(("", "", "a100", "a100|h100")) if gpus else "",
        gpu_backend=rng.choice(("", "", "nvidia")) if gpus else "",
        min_vram_gb=rng.choice((0.0, 10.0, 45.0, 170.0)) if kind < 0.7 else 0.0,
        gpu_share=rng.choice((0.25, 0.9)) if 0.7 < kind < 0.8 else 0.0,
        min_cpu_cores=rng.choice((0.0, 1.0, 3.5, 40.0)),
        min_memory_gb=rng.choice((0.0, 2.0, 30.0, 300.0)),
        labels=rng.choice(([], [], [], ["zone = eu"], ["driver >= 500", "zone in us,eu"])),
        node_count=rng.choice((2, 3)) if several < 0.15 else 1,
        array=rng.choice((3, 20)) if several > 0.85 else 0,
        type=rng.choice(("batch", "service")) if 0.4 < several < 0.5 else "batch",
        allowed_hosts=rng.choice(([], [], [], ["alpha"])),
        prefer_cuda=kind > 0.95,
        preemptible=rng.random() < 0.2,
        max_runtime_hours=rng.choice((0.0, 0.1, 5.0)),
        depends_on=[f"j{rng.randrange(1, 20)}"] if rng.random() < 0.1 else [],
    )


def verify(seed: int, tried: Tried) -> tuple[int, list[str]]:
    """How many changes were named for one job of this triple, and what is wrong with them."""
    stand = stand_of(seed)
    waiting = [job for job in stand.fleet.jobs.values() if job.state == "pending" and job.waiting]
    if not waiting:
        return 0, []
    job = random.Random(f"job {seed}").choice(waiting)
    changes = smallest(stand.fleet, job, stand.now, tried)
    wrong = [line for change in changes for line in _wrong(stand, job, change, tried)]
    return len(changes), [f"seed {seed}, {job.id}: {line}" for line in wrong]


def _wrong(stand: Stand, job: Job, change: Change, tried: Tried) -> Iterator[str]:
    if tried(lambda: _starts(stand, job, lambda: None)):
        yield "it would start without any change"
    if not tried(lambda: _starts(stand, job, lambda: _make(stand, job, change))):
        yield f"{change.words!r} does not start it"
    for less in _smaller(change):
        if tried(lambda less=less: _starts(stand, job, lambda: _make(stand, job, less))):  # type: ignore[misc]
            yield f"{change.words!r} is not the smallest of its kind: {less.to} would do"


def _smaller(change: Change) -> Iterator[Change]:
    if change.kind == "machine":
        number = change.to["count"]
        tried: list[Any] = [{**change.to, "count": number - 1}] if number > 1 else []
    elif change.kind in ("quota", "priority", "slots"):
        tried = [value for value in {_number(change.to) - 1} if value > _number(change.was)]
    elif change.kind in FIELDS:
        low, high = _number(change.to) + 1, _number(change.was)
        tried = sorted({value for value in (low, low + 1, (low + high) // 2, high - 1) if low <= value < high})
    else:
        tried = [_number(change.to) + 1] if change.kind == "run_time" else []
    yield from (msgspec.structs.replace(change, to=value) for value in tried)


def _number(value: object) -> int:
    assert isinstance(value, int)
    return value


def _starts(stand: Stand, job: Job, make: Callable[[], Job | None]) -> bool:
    changed = make() or job
    before = _begun(changed)
    stand.turn()
    return bool(_begun(changed) - before)


def _begun(job: Job) -> set[str]:
    return {task.holder.id for task in (job.tasks or {}).values() if task.holder is not None}


def _make(stand: Stand, job: Job, change: Change) -> Job | None:
    """By what a person would do about it."""
    fleet, request, terms = stand.fleet, job.shape.request, job.terms
    to: Any = change.to
    match change.kind:
        case "resume":
            _step(stand, *(DrainRequested(ref=0, worker_id=name, draining=False) for name in change.workers))
        case "return":
            _come_back(stand, change.workers)
        case "slots":
            worker = fleet.workers[change.workers[0]]
            slots = msgspec.structs.replace(worker.slots or Slots(), **{f"{request.pool}_total": to})
            _step(stand, WorkerBeat(worker_id=worker.id, session=worker.session, slots=slots))
        case "machine":
            _add(stand, to["machine"], to["count"], request.pool)
        case "quota":
            name = "running_jobs" if "running_jobs" in change.words else "running_gpus"
            higher = msgspec.structs.replace(fleet.quotas.of(job.user), **{name: to})
            fleet.set_quotas(Quotas(default=fleet.quotas.default, users={**fleet.quotas.users, job.user: higher}))
        case "priority":
            return _again(stand, job, request, msgspec.structs.replace(terms, priority=to))
        case "run_time":
            return _again(stand, job, request, msgspec.structs.replace(terms, max_runtime_s=float(to), limited=True))
        case _:
            return _again(stand, job, _relaxed(request, change), terms)
    return None


def _relaxed(request: Request, change: Change) -> Request:
    given_up: dict[str, dict[str, Any]] = {
        "depends_on": {},
        "gpu_type": {"gpu_type": ""},
        "backend": {"backend": ""},
        "preference": {"cuda_first_s": 0.0},
        "labels": {"labels": tuple(rule for rule in request.labels if str(rule) != change.was)},
        "hosts": {"allowed_hosts": ()} if "any host" in change.words else {"denied_hosts": ()},
    }
    needs = {FIELDS[change.kind]: change.to} if change.kind in FIELDS else given_up[change.kind]
    return msgspec.structs.replace(request, **needs)


def _again(stand: Stand, job: Job, request: Request, terms: Terms) -> Job:
    size = job.size if not job.is_gang else request.nodes if request.nodes > 1 else 0
    new = NewJob(id="again", user=job.user, name="", spec=b"{}", request=request, terms=terms, size=size, kind=job.kind)
    _step(stand, CancelRequested(ref=0, job_id=job.id), JobsSubmitted(ref=0, jobs=[new]))
    return stand.fleet.jobs["again"]


def _come_back(stand: Stand, names: list[str]) -> None:
    for name in names:
        worker = stand.fleet.workers[name]
        held = [ActiveTask(task_id=one.task_id, attempt=one.id) for one in worker.attempts.values()]
        told = {"worker_id": name, "session": 10_000}
        offer = worker.capabilities
        _step(stand, WorkerRegistered(capabilities=offer, active_tasks=held, boot_id="boot", **told))  # type: ignore[arg-type]
        _step(stand, WorkerBeat(slots=worker.slots or Slots(batch_total=64), **told))  # type: ignore[arg-type]


def _add(stand: Stand, machine: Capabilities, number: int, pool: str) -> None:
    for position in range(number):
        told: dict[str, Any] = {"worker_id": f"new{position}", "session": 20_000 + position}
        _step(stand, WorkerRegistered(capabilities=machine, **told))
        _step(stand, WorkerBeat(slots=Slots(**{f"{pool}_total": 1}), **told))


def _step(stand: Stand, *events: Event) -> None:
    for event in events:
        step(stand.fleet, event, stand.now)
