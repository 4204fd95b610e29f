"""What if: a job that is not submitted, one with other needs, other workers, another policy; compared with what is."""

import asyncio
import contextlib
import math
from typing import Annotated, Any, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ostler.core.fleet import Fleet
from ostler.core.foresight import explain
from ostler.core.foresight.outlook import Run
from ostler.core.foresight.trial import run_pass
from ostler.core.foresight.whatif import Altered, Machine, Plan, apply
from ostler.core.jobs import over_quota
from ostler.domain import states
from ostler.domain.errors import BadInput, NotAllowed, NotFound
from ostler.domain.job import MAX_SPEC_BYTES, JobSpec, decode_spec
from ostler.domain.worker import Capabilities, Slots
from ostler.hub.access import Caller
from ostler.hub.api.jobs import JobsApi
from ostler.hub.api.routes import caller_of, decode_body, json_response, read_body
from ostler.hub.api.templates import Templates
from ostler.hub.documents import Document, timestamp
from ostler.hub.expected import document, in_words
from ostler.hub.foresight import WITHIN_S, Forecast, Foresight
from ostler.hub.ids import new_job_id
from ostler.hub.loop import Loop
from ostler.hub.new_job import new_job

MOST_OTHERS = 20
_text = msgspec.json.Decoder(str).decode
MOVED_S = 60.0
"""A start that moves by less than this, or by less than a twentieth of the wait, has not moved."""
MOST_LOOKED_AT = 1000
MOST_WITHIN_S = 20.0
MOST_ADDED = 1000
AT_ONCE = 4
"""Each has two copies of the hub at work for as long as it asks for; the others wait for their turn."""


class AddedWorkers(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Machines like one that is there, or as described."""

    like: str = ""
    capabilities: Capabilities | None = None
    slots: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    """0: as many as it has cores."""
    count: Annotated[int, msgspec.Meta(ge=1, le=MOST_ADDED)] = 1


class Policy(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    hold_after_s: Annotated[float, msgspec.Meta(ge=0)] | None = None
    holds: bool = True
    """False: no machine is ever held."""
    head_blocks: bool | None = None


class WhatIf(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What would start when, if this were so. Nothing real is touched."""

    spec: dict[str, Any] | None = None
    """A job that is not submitted."""
    job_id: str = ""
    """A job that waits, with `changes` laid over its spec."""
    changes: dict[str, Any] = {}
    priority: Annotated[int, msgspec.Meta(ge=-1_000_000, le=1_000_000)] | None = None
    add_workers: list[AddedWorkers] = []
    remove_workers: list[str] = []
    drain: list[str] = []
    resume: list[str] = []
    policy: Policy | None = None
    within_s: Annotated[float, msgspec.Meta(gt=0, le=MOST_WITHIN_S)] = WITHIN_S
    """How long to look ahead for, by the clock of whoever asks: a longer queue is seen further."""


class WhatIfApi:
    def __init__(self, loop: Loop, jobs: JobsApi, foresight: Foresight, templates: Templates) -> None:
        self._loop = loop
        self._jobs = jobs
        self._foresight = foresight
        self._templates = templates
        self._at_once = asyncio.Semaphore(AT_ONCE)

    async def whatif(self, request: Request) -> Response:
        caller = caller_of(request)
        wanted = decode_body(await read_body(request, 4 * MAX_SPEC_BYTES), WhatIf)
        subject, base, plan = await self._plan(caller, wanted)
        async with self._at_once:
            with contextlib.ExitStack() as made:
                # Both from this moment on: of one that is older, what should have happened since may be late.
                before = await self._foresight.otherwise(base)
                made.callback(before.stop)
                after = await self._foresight.otherwise(plan)
                made.callback(after.stop)
                asked = asyncio.create_task(self._summary(plan, subject))
                await asyncio.gather(*[one.known(subject, wanted.within_s) for one in (before, after)])
                return json_response(await self._compared(caller, subject, wanted, await asked, before, after))

    async def _summary(self, plan: Plan, subject: str) -> str:
        """Why it would be where it would be at once."""
        if not subject:
            return ""
        return await self._foresight.ask(new_job_id(), lambda fleet, at, _: _summary(fleet, at, plan, subject), _text)

    async def _compared(
        self, caller: Caller, subject: str, wanted: WhatIf, summary: str, before: Forecast, after: Forecast
    ) -> Document:
        new_alone = wanted.spec is not None and not _changes_fleet(wanted)
        now = document(before.outlook.expected(subject), before.wall) if subject and not new_alone else None
        then = document(after.outlook.expected(subject), after.wall) if subject else None
        for one, wall in ((now, before.wall), (then, after.wall)):
            if one is not None:
                one["words"] = in_words(one, wall)
        if then is not None:
            then["summary"] = summary
        moved = await asyncio.to_thread(_moved, before, after, subject)
        others = await self._loop.look(lambda fleet, _: _seen_by(caller, fleet, moved))
        return {
            "job": subject or None,
            "now": now,
            "then": then,
            "earlier": _in_one_direction(moved, others, is_later=False),
            "later": _in_one_direction(moved, others, is_later=True),
            "compared": len(_starts(before, after).keys() - {subject}),
        }

    async def _plan(self, caller: Caller, wanted: WhatIf) -> tuple[str, Plan, Plan]:
        """The job that is asked about, what is so on both sides, and what on the other."""
        if wanted.spec is not None and wanted.job_id:
            raise BadInput("spec: give a spec or a job_id, not both", [("spec", "with job_id")])
        base, plan, subject = Plan(), Plan(), ""
        if wanted.spec is not None:
            new = new_job(self._spec(caller, wanted))
            subject = new.id
            if (refused := await self._loop.look(lambda fleet, _: over_quota(fleet, {new.id: new}))) is not None:
                raise refused
            known, departed = await self._jobs.waited_for(caller, set(new.depends_on))
            for side in (base, plan) if _changes_fleet(wanted) else (plan,):
                side.submit, side.known, side.departed = [new], known, departed
        elif wanted.job_id:
            subject, altered = await self._altered(caller, wanted)
            plan.alter = [altered] if altered is not None else []
        elif wanted.changes or wanted.priority is not None:
            raise BadInput("changes: of which job? give its job_id", [("job_id", "is missing")])
        plan.remove, plan.drain, plan.resume = wanted.remove_workers, wanted.drain, wanted.resume
        plan.add = await self._loop.look(lambda fleet, _: _machines(fleet, wanted))
        if wanted.policy is not None:
            plan.hold_after_s = math.inf if not wanted.policy.holds else wanted.policy.hold_after_s
            plan.head_blocks = wanted.policy.head_blocks
        if not plan:
            raise BadInput(
                "nothing would be different; give a spec, changes to a job, or workers to add, remove, drain or resume",
                [("body", "no change")],
            )
        return subject, base, plan

    def _spec(self, caller: Caller, wanted: WhatIf) -> JobSpec:
        fields = {**(wanted.spec or {}), **wanted.changes}
        fields.setdefault("command", ["true"])
        spec = decode_spec(self._templates.resolve(msgspec.json.encode(fields)), "spec.")
        if spec.user_id and spec.user_id != caller.user and caller.role != "operator":
            raise NotAllowed("user_id: only an operator may ask for somebody else")
        spec.id, spec.user_id = new_job_id(), spec.user_id or caller.user
        spec.priority = wanted.priority if wanted.priority is not None else spec.priority
        return spec

    async def _altered(self, caller: Caller, wanted: WhatIf) -> tuple[str, Altered | None]:
        target = await self._jobs.find(caller, wanted.job_id)
        if not await self._loop.look(lambda fleet, _: _waits(fleet, target.job.id)):
            told = f"job_id: {target.job.id} does not wait: it is {target.job.state}"
            raise BadInput(f"{told}; to ask about its like, give a spec", [("job_id", "does not wait")])
        if not wanted.changes and wanted.priority is None:
            return target.job.id, None
        own = {**msgspec.json.decode(target.job.spec), "priority": target.job.terms.priority}
        fields: dict[str, Any] = {**own, **wanted.changes}
        if wanted.priority is not None:
            fields["priority"] = wanted.priority
        spec = decode_spec(msgspec.json.encode(fields), "changes.")
        if spec.size() != target.job.size:
            told = "changes: how many tasks a job has cannot be changed; ask with a spec instead"
            raise BadInput(told, [("changes", "another number of tasks")])
        return target.job.id, Altered(target.job.id, spec.request(), spec.terms())


def _waits(fleet: Fleet, job_id: str) -> bool:
    job = fleet.jobs.get(job_id)
    return job is not None and (job.state == states.PENDING or bool(job.waiting))


def _changes_fleet(wanted: WhatIf) -> bool:
    return bool(wanted.add_workers or wanted.remove_workers or wanted.drain or wanted.resume or wanted.policy)


def _machines(fleet: Fleet, wanted: WhatIf) -> list[Machine]:
    for field in ("remove_workers", "drain", "resume"):
        for name in getattr(wanted, field):
            if name not in fleet.workers:
                raise NotFound(f"{field}: there is no worker {name!r}")
    machines: list[Machine] = []
    for group in wanted.add_workers:
        known = fleet.workers.get(group.like) if group.like else None
        if group.like and known is None:
            raise NotFound(f"add_workers: there is no worker {group.like!r} to be like")
        offered = group.capabilities or (known.capabilities if known is not None else None)
        if offered is None:
            raise BadInput("add_workers: give like or capabilities", [("add_workers", "no machine is described")])
        slots = group.slots or (known.slots.batch_total if known and known.slots else 0) or int(offered.cpu_count) or 1
        for _ in range(group.count):
            name = f"added-{len(machines) + 1}"
            machines.append(Machine(name, offered, Slots(batch_total=slots, service_total=slots)))
            if len(machines) > MOST_ADDED:
                raise BadInput(f"add_workers: over {MOST_ADDED} machines", [("add_workers", "too many")])
    return machines


def _summary(fleet: Fleet, now: float, plan: Plan, subject: str) -> str:
    apply(fleet, plan, now)
    run_pass(fleet, now)
    job = fleet.jobs.get(subject)
    if job is None:
        return "it would have ended"
    return explain.why(fleet, job, (job.tasks or {}).get(0) if not job.size else None, now).summary


class Move(NamedTuple):
    """A job whose start moves: by the clock on the wall, and never is infinitely late."""

    job_id: str
    was: float
    becomes: float

    @property
    def by_s(self) -> float:
        return self.becomes - self.was

    def document(self) -> Document:
        was, becomes = [None if math.isinf(at) else timestamp(at) for at in (self.was, self.becomes)]
        return {"id": self.job_id, "by_s": round(self.by_s) if was and becomes else None, "now": was, "then": becomes}


def _seen_by(caller: Caller, fleet: Fleet, moved: list[Move]) -> list[Move]:
    first = [(one, fleet.jobs.get(one.job_id)) for one in moved[:MOST_LOOKED_AT]]
    return [one for one, job in first if job is not None and caller.may_see(job.user)]


def _in_one_direction(moved: list[Move], seen: list[Move], *, is_later: bool) -> Document:
    jobs = [one.document() for one in seen if (one.by_s > 0) == is_later]
    return {"count": sum((one.by_s > 0) == is_later for one in moved), "jobs": jobs[:MOST_OTHERS]}


def _starts(before: Forecast, after: Forecast) -> dict[str, tuple[float, float]]:
    """When each job begins in the likely runs of both, as far as both say: one that has looked at all that happens and
    has not seen a job begin says never."""
    sides = [(one.outlook.runs.get(0) or Run(), one.wall) for one in (before, after)]
    found = {}
    for job_id in sides[0][0].starts.keys() | sides[1][0].starts.keys():
        was, becomes = [
            wall + run.starts[job_id] if job_id in run.starts else math.inf if run.over else None for run, wall in sides
        ]
        if was is not None and becomes is not None:
            found[job_id] = (was, becomes)
    return found


def _moved(before: Forecast, after: Forecast, subject: str) -> list[Move]:
    """The others whose start moves, those that move most first."""
    found = [Move(job_id, *both) for job_id, both in _starts(before, after).items() if job_id != subject]
    moved = [one for one in found if abs(one.by_s) > max(MOVED_S, _wait_s(one, before) / 20)]
    return sorted(moved, key=lambda one: (-abs(one.by_s), one.job_id))


def _wait_s(move: Move, before: Forecast) -> float:
    return 0.0 if math.isinf(move.was) else abs(move.was - before.wall)
