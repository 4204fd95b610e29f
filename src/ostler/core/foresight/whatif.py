"""What if: a plan, made true on a copy by the same events that would make it true."""

import math

import msgspec

from ostler.core.events import DrainRequested, JobsSubmitted, NewJob, WorkerBeat, WorkerLeft, WorkerRegistered
from ostler.core.fleet import Fleet
from ostler.core.jobs import alter
from ostler.core.step import step
from ostler.domain.job import Terms
from ostler.domain.records import DepartedRecord, JobRecord
from ostler.domain.resources import Request
from ostler.domain.worker import Capabilities, Slots


class Altered(msgspec.Struct):
    """A job that is there, with other needs or on other terms."""

    job_id: str
    request: Request
    terms: Terms


class Machine(msgspec.Struct):
    name: str
    capabilities: Capabilities
    slots: Slots


class Plan(msgspec.Struct, kw_only=True):
    submit: list[NewJob] = []
    known: dict[str, JobRecord] = {}
    """What they wait for, as far as it is in the ledger; and what is gone from there."""
    departed: dict[str, DepartedRecord] = {}
    alter: list[Altered] = []
    add: list[Machine] = []
    remove: list[str] = []
    drain: list[str] = []
    resume: list[str] = []
    hold_after_s: float | None = None
    head_blocks: bool | None = None

    def __bool__(self) -> bool:
        return any(getattr(self, name) not in ([], {}, None) for name in self.__struct_fields__)


def apply(fleet: Fleet, plan: Plan, now: float) -> None:
    policy = {"hold_after_s": plan.hold_after_s, "head_blocks": plan.head_blocks}
    chosen = {name: value for name, value in policy.items() if value is not None}
    if chosen:
        fleet.policy = msgspec.structs.replace(fleet.policy, **chosen)
    for name in plan.remove:
        _remove(fleet, name, now)
    for name, draining in [*((name, True) for name in plan.drain), *((name, False) for name in plan.resume)]:
        step(fleet, DrainRequested(ref=0, worker_id=name, draining=draining), now)
    for machine in plan.add:
        step(fleet, WorkerRegistered(worker_id=machine.name, session=1, capabilities=machine.capabilities), now)
        step(fleet, WorkerBeat(worker_id=machine.name, session=1, slots=machine.slots), now)
    for one in plan.alter:
        job = fleet.jobs.get(one.job_id)
        if job is not None:
            alter(fleet, job, one.request, one.terms)
    if plan.submit:
        step(fleet, JobsSubmitted(ref=0, jobs=plan.submit, known=plan.known, departed=plan.departed), now)


def _remove(fleet: Fleet, name: str, now: float) -> None:
    """Switched off: what runs there waits for it until its grace is over, and then runs elsewhere."""
    worker = fleet.workers.get(name)
    if worker is None:
        return
    worker.last_contact = -math.inf if worker.only_claims else now
    if worker.connected:
        step(fleet, WorkerLeft(worker_id=name, session=worker.session), now)
