"""The real core with a clock and a memory ledger, and a short method for each event.

Every turn is the hub's: step each event, place, check every invariant, commit. Nothing is ever asserted of a fleet
that check() would not accept.
"""

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any, TypeVar

import msgspec

from ostler.core.attempt import LEASES
from ostler.core.check import check
from ostler.core.effects import AssignTask, Beaten, CancelTask, Claimed, Effect, Followed, NothingToClaim, Refuse
from ostler.core.events import (
    CancelRequested,
    ClaimBeat,
    ClaimEnded,
    ClaimRequested,
    DrainRequested,
    Event,
    JobsSubmitted,
    ManifestApplied,
    NewJob,
    RequeueRequested,
    TaskAccepted,
    TaskEnded,
    TimePassed,
    WorkerAsked,
    WorkerBeat,
    WorkerLeft,
    WorkerRegistered,
)
from ostler.core.fleet import Attempt, Fleet, Worker
from ostler.core.foresight.explain import Why, why
from ostler.core.learning.kinds import kind_of
from ostler.core.persist import restore, take_changes
from ostler.core.placing.place import settle, settled
from ostler.core.step import step
from ostler.domain import states
from ostler.domain.hosts import HostPolicy
from ostler.domain.job import JobSpec
from ostler.domain.records import JobRecord, ManifestRecord, TaskRecord
from ostler.domain.worker import ActiveTask, Capabilities, DeviceInfo, Slots
from ostler.ledger.ahead import task_of
from ostler.ledger.memory import MemoryLedger

EPOCH = 1_700_000_000.0
HEARTBEAT_S = 10.0
E = TypeVar("E")


def capabilities(
    *,
    gpus: int = 0,
    vram: float = 0.0,
    cores: float = 64,
    memory: float = 512,
    backend: str = "",
    devices: Iterable[float] = (),
    **more: Any,
) -> Capabilities:
    """`vram` is the total; `devices` lists the memory of each GPU instead."""
    listed = [DeviceInfo(index=index, vram_gb=size) for index, size in enumerate(devices)]
    return Capabilities(
        gpu_backend=backend or ("nvidia" if gpus or listed else "cpu"),
        gpu_count=gpus or len(listed),
        vram_gb=vram or sum(device.vram_gb for device in listed),
        cpu_count=cores,
        memory_gb=memory,
        devices=listed,
        **more,
    )


class CoreFleet:
    def __init__(self, *, checked: bool = True) -> None:
        self.checked = checked
        self.now = 0.0
        self.ledger = MemoryLedger()
        self.heard: list[Effect] = []
        """The effects of the last turn."""
        self._numbers = count(1)
        self._sessions = count(1)
        self._refs = count(1)
        self.fleet = self._load()

    def _load(self) -> Fleet:
        return self.restored(lambda: f"a{next(self._numbers)}")

    def restored(self, new_attempt_id: Callable[[], str] = lambda: "") -> Fleet:
        """The fleet as the ledger has it."""
        kept = self.ledger.load()
        hosts = msgspec.json.decode(kept.manifest.text, type=dict[str, HostPolicy]) if kept.manifest else {}
        return restore(kept, new_attempt_id, self.now, EPOCH, hosts, leases=self.ledger.kept(LEASES))

    # The hub

    def turn(self, *events: Event) -> list[Effect]:
        """What the loop does with one batch."""
        self.heard = []
        for event in events:
            self.heard += step(self.fleet, event, self.now)
            self._check(after_pass=False)
        self.heard += step(self.fleet, TimePassed(), self.now)
        self.heard += settle(self.fleet, self.now)
        self._check(after_pass=settled(self.fleet))
        self.ledger.commit(take_changes(self.fleet, self.now))
        return self.heard

    def _check(self, *, after_pass: bool) -> None:
        if self.checked:
            check(self.fleet, self.now, after_pass=after_pass)

    def wait(self, seconds: float, *, silent: bool = False) -> list[Effect]:
        """Time passes, deadline by deadline; connected workers stay in touch unless they are `silent`."""
        until, said = self.now + seconds, []
        while self.now < until:
            due = self.fleet.timers.next_at()
            beat_at = (self.now // HEARTBEAT_S + 1) * HEARTBEAT_S
            self.now = max(self.now, min(until, beat_at, until if due is None else due))
            awake = self.fleet.workers.values() if self.now == beat_at and not silent else ()
            said += self.turn(*[_touch(worker) for worker in awake if worker.connected])
        self.heard = said
        return said

    def restart(self, *, away: float = 0.0) -> None:
        """Memory is gone; what the ledger has is not."""
        self.now += away
        self.fleet = self._load()
        self._check(after_pass=False)
        self.turn()

    # Workers

    def worker(self, name: str, *, slots: int | None = 64, service_slots: int = 0, **offer: Any) -> Worker:
        """Registers and announces its slots; `slots=None`: it keeps silent about them."""
        self.register(name, capabilities(**offer))
        if slots is not None:
            self.beat(name, slots=Slots(batch_total=slots, service_total=service_slots))
        return self.fleet.workers[name]

    def register(
        self,
        name: str,
        offer: Capabilities | None = None,
        *,
        holds: Iterable[ActiveTask] = (),
        boot_id: str = "boot",
        slots: int | None = None,
        ahead: int = 0,
        is_plain: bool = False,
    ) -> list[Effect]:
        known = self.fleet.workers.get(name)
        offer = offer or (known.capabilities if known else Capabilities())
        event = WorkerRegistered(
            worker_id=name,
            session=next(self._sessions),
            capabilities=offer,
            active_tasks=list(holds),
            boot_id=boot_id,
            ahead=ahead,
            is_plain=is_plain,
        )
        said = self.turn(event)
        if slots is not None:
            said = said + self.beat(name, slots=Slots(batch_total=slots))
            self.heard = said
        return said

    def session(self, name: str) -> int:
        return self.fleet.workers[name].session

    def beat(self, name: str, holds: Iterable[ActiveTask] | None = None, **more: Any) -> list[Effect]:
        account = None if holds is None else list(holds)
        return self.turn(WorkerBeat(worker_id=name, session=self.session(name), active_tasks=account, **more))

    def ask(self, name: str, slots: Slots | None = None) -> list[Effect]:
        return self.turn(self.asking(name, slots))

    def asking(self, name: str, slots: Slots | None = None) -> WorkerAsked:
        return WorkerAsked(worker_id=name, session=self.session(name), slots=slots)

    def leave(self, name: str) -> list[Effect]:
        return self.turn(WorkerLeft(worker_id=name, session=self.session(name)))

    def drain(self, name: str, draining: bool = True) -> list[Effect]:
        return self.turn(DrainRequested(ref=next(self._refs), worker_id=name, draining=draining))

    def accept(self, task_id: str, *, attempt: str | None = None, worker: str = "") -> list[Effect]:
        """By the worker that holds it, for the attempt that it was given, unless told otherwise."""
        worker = worker or self.where(task_id)
        attempt = self.attempt(task_id) if attempt is None else attempt
        session = self.session(worker)
        return self.turn(TaskAccepted(worker_id=worker, session=session, task_id=task_id, attempt=attempt))

    def end(
        self, task_id: str, state: str = "succeeded", *, attempt: str | None = None, worker: str = "", **more: Any
    ) -> list[Effect]:
        worker = worker or self.where(task_id)
        attempt = self.attempt(task_id) if attempt is None else attempt
        if state == "failed":
            more.setdefault("exit_code", 1)
        session = self.session(worker)
        event = TaskEnded(worker_id=worker, session=session, task_id=task_id, attempt=attempt, state=state, **more)
        return self.turn(event)

    def start(self, *task_ids: str) -> None:
        for task_id in task_ids:
            self.accept(task_id)

    # Machines that only claim

    def claim(self, name: str, **offer: Any) -> Claimed | NothingToClaim:
        """One claim, and its answer."""
        self.turn(self.claiming(name, **offer))
        (answer,) = [one for one in self.heard if isinstance(one, (Claimed, NothingToClaim))]
        return answer

    def claiming(self, name: str, **offer: Any) -> ClaimRequested:
        said = offer.pop("said", None) or capabilities(**{"cores": 4, "memory": 16, "hostname": name, **offer})
        return ClaimRequested(ref=next(self._refs), worker_id=name, capabilities=said, capability=b"{}")

    def claim_beat(self, name: str, task_id: str, attempt: str = "") -> bool | None:
        """Whether it is to cancel; None: it was refused."""
        self.turn(ClaimBeat(ref=next(self._refs), worker_id=name, task_id=task_id, attempt=attempt))
        return next((one.cancel for one in self.of(Beaten)), None)

    def claim_end(self, name: str, task_id: str, state: str = "succeeded", attempt: str = "", **more: Any) -> bool:
        """Whether it was taken."""
        self.turn(self.claim_ending(name, task_id, state, attempt, **more))
        return not self.of(Refuse)

    def claim_ending(
        self, name: str, task_id: str, state: str = "succeeded", attempt: str = "", **more: Any
    ) -> ClaimEnded:
        end = TaskEnded(worker_id=name, session=0, task_id=task_id, attempt=attempt, state=state, **more)
        return ClaimEnded(ref=next(self._refs), end=end, history=self.ledger.attempts_of(task_id))

    # People

    def follow(self, *jobs: NewJob, hosts: dict[str, HostPolicy] | None = None, **more: bool) -> dict[str, str]:
        """Apply a manifest of these jobs; what became of each. `more`: `plan`, `replace`."""
        self.turn(self.following(*jobs, hosts=hosts, **more))
        return {line.job_id: line.change for answer in self.of(Followed) for line in answer.lines}

    def following(self, *jobs: NewJob, hosts: dict[str, HostPolicy] | None = None, **more: bool) -> ManifestApplied:
        text = msgspec.json.encode(hosts or {}).decode()
        record = ManifestRecord(text=text, file="manifest.toml", by="admin", applied_at=0.0)
        event = ManifestApplied(ref=next(self._refs), jobs=list(jobs), hosts=hosts or {}, record=record, **more)
        event.known = self.ledger.jobs([new.id for new in jobs])
        event.live = {view.job.id: view.job.name for view in self.ledger.manifest_jobs(states=states.LIVE)}
        return event

    def submit(self, job_id: str = "", **spec: Any) -> str:
        job_id = job_id or f"j{next(self._refs)}"
        self.turn(self.known(submission(next(self._refs), job_id, **spec)))
        return job_id

    def known(self, event: JobsSubmitted) -> JobsSubmitted:
        """As the loop makes it: what the jobs wait for is looked up before the batch."""
        event.known = self.ledger.jobs([name for new in event.jobs for name in new.depends_on])
        return event

    def cancel(self, job_id: str, index: int | None = None) -> list[Effect]:
        return self.turn(self.cancellation(job_id, index))

    def cancellation(self, job_id: str, index: int | None = None) -> CancelRequested:
        return CancelRequested(ref=next(self._refs), job_id=job_id, index=index)

    def requeue(self, job_id: str, index: int | None = None) -> list[Effect]:
        return self.turn(self.requeueing(job_id, index))

    def requeueing(self, job_id: str, index: int | None = None) -> RequeueRequested:
        """As the loop makes it: history comes from the ledger, as it is before the batch."""
        record = self.ledger.jobs([job_id]).get(job_id)
        rows = [row for row in self.ledger.tasks_of(job_id) if row.state in states.TERMINAL]
        ref = next(self._refs)
        return RequeueRequested(ref=ref, job_id=job_id, index=index, ended=record, ended_tasks=rows)

    # What is seen

    def job(self, job_id: str) -> JobRecord:
        """Its row."""
        return self.ledger.jobs([job_id])[job_id]

    def task(self, task_id: str) -> TaskRecord:
        return self.ledger.tasks([task_id])[task_id]

    def state(self, task_id: str) -> str:
        row = self.ledger.tasks([task_id]).get(task_id)
        name, _, index = task_id.partition(".")
        if row is None and index:
            row, _ = task_of(self.ledger, name, int(index))
        return row.state if row is not None else self.job(task_id).state

    def states(self, *task_ids: str) -> list[str]:
        return [self.state(task_id) for task_id in task_ids]

    def holder(self, task_id: str) -> Attempt | None:
        task = self.fleet.find_task(task_id)
        return task.holder if task is not None else None

    def attempt(self, task_id: str) -> str:
        holder = self.holder(task_id)
        assert holder is not None, f"nothing holds room for {task_id}, which is {self.state(task_id)}"
        return holder.id

    def where(self, task_id: str) -> str:
        """The worker on which it holds room; "": nowhere."""
        holder = self.holder(task_id)
        return holder.worker_id if holder is not None else ""

    def devices(self, task_id: str) -> tuple[int, ...]:
        holder = self.holder(task_id)
        assert holder is not None
        return holder.held.grant.devices

    def free(self, name: str) -> tuple[int, int, tuple[int, ...]]:
        """Cores in thousandths, memory in MiB, and the VRAM of each device in MiB."""
        room = self.fleet.workers[name].room
        return room.cores_milli, room.memory_mib, tuple(room.vram_mib)

    def why(self, job_id: str) -> Why:
        job, index = self.fleet.find_job(job_id)
        assert job is not None
        return why(self.fleet, job, (job.tasks or {}).get(index), self.now)

    def queue(self) -> list[str]:
        return [job.id for job in self.fleet.queue.in_order()]

    def assigned(self) -> list[str]:
        """The tasks given out in the last turn, in order."""
        return [effect.task_id for effect in self.of(AssignTask)]

    def cancelled(self) -> list[tuple[str, str]]:
        """(worker, attempt) that were told to stop in the last turn."""
        return [(effect.worker_id, effect.attempt) for effect in self.of(CancelTask)]

    def of(self, kind: type[E]) -> list[E]:
        return [effect for effect in self.heard if isinstance(effect, kind)]


def submission(ref: int, job_id: str, **spec: Any) -> JobsSubmitted:
    return JobsSubmitted(ref=ref, jobs=[new_job(job_id, **spec)])


def entry(job_id: str, **spec: Any) -> NewJob:
    """A job of a manifest."""
    terms = {"job_tier": "training", "on_lost_contact": "stop", "user_id": "manifest", "name": job_id}
    new = new_job(job_id, **{**terms, **spec})
    new.origin = "manifest"
    return new


def new_job(job_id: str, **spec: Any) -> NewJob:
    wanted = JobSpec(command=["true"], **spec)
    return NewJob(
        id=job_id,
        user=wanted.user_id or "ann",
        name=wanted.name,
        spec=msgspec.json.encode(wanted),
        request=wanted.request(),
        terms=wanted.terms(),
        size=wanted.size(),
        depends_on=wanted.depends_on,
        snapshot=wanted.snapshot(),
        kind=kind_of(wanted),
    )


def holding(*pairs: tuple[str, str], state: str = "running") -> list[ActiveTask]:
    """A worker's account: (task, attempt) of each."""
    return [ActiveTask(task_id=task_id, attempt=attempt, state=state) for task_id, attempt in pairs]


def _touch(worker: Worker) -> WorkerBeat:
    return WorkerBeat(worker_id=worker.id, session=worker.session)
