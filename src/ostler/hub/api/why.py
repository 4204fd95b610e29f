"""Why a job is where it is, and when it will be elsewhere: over HTTP."""

import asyncio
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ostler.core.fleet import Fleet, Job, Task
from ostler.core.foresight import change, explain
from ostler.core.foresight.explain import Why
from ostler.core.foresight.holders import Holder, holders
from ostler.core.foresight.outlook import Expected, foreseen
from ostler.core.foresight.trial import Tried
from ostler.core.learning.estimates import left
from ostler.core.queueing.holds import OTHERS
from ostler.domain import states
from ostler.domain.finite import encode
from ostler.hub.access import Caller
from ostler.hub.apart import CopyFailed
from ostler.hub.api.jobs import JobsApi, Target
from ostler.hub.api.routes import caller_of, json_response
from ostler.hub.documents import Document
from ostler.hub.expected import document, in_words
from ostler.hub.foresight import Foresight
from ostler.hub.logs import Logs
from ostler.hub.loop import Loop

LOG_TAIL = 2000
_parts = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


Parts = dict[str, msgspec.Raw]
"""Of a Why that came from a copy: on a large fleet it is long, and most of it only passes through."""


class WhyApi:
    def __init__(self, loop: Loop, jobs: JobsApi, foresight: Foresight, logs: Logs) -> None:
        self._loop = loop
        self._jobs = jobs
        self._foresight = foresight
        self._logs = logs

    async def why(self, request: Request) -> Response:
        target, caller = await self._jobs.target(request), caller_of(request)
        if request.query_params.get("brief"):
            brief = await self._loop.look(lambda fleet, now: _brief(fleet, target, now))
            return json_response(brief if brief is not None else await self._why_ended(target))
        told = await self._why_live(target)
        if told is None:
            return json_response(await self._why_ended(target))
        held = msgspec.json.decode(told["holders"], type=list[Holder])
        return json_response({**told, "holders": [_as_seen_by(caller, holder) for holder in held]})

    async def _why_live(self, target: Target) -> Parts | None:
        job = await self._loop.look(lambda fleet, _: _find(fleet, target))
        if job is None:
            return None
        waits = job.state == states.PENDING
        key = ("why", target.job.id, target.index)
        whole = asyncio.create_task(self._foresight.ask(key, partial(why_fully, target), _parts))
        try:
            expected = await self._foresight.expected(target.job.id) if waits else None
            told: Parts = await whole
        except CopyFailed:
            whole.cancel()
            brief = await self._loop.look(lambda fleet, now: _brief(fleet, target, now))
            return msgspec.json.decode(encode(brief), type=Parts) if brief is not None else None
        if not told:
            return None
        own = msgspec.json.decode(told["expected"])
        if own is None and msgspec.json.decode(told["state"]) == states.PENDING:
            own = expected
        estimate = in_words(own, self._wall()) if own is not None else None
        more = {"expected": own, "estimate": estimate}
        return {**told, **{name: msgspec.Raw(encode(value)) for name, value in more.items()}}

    def _wall(self) -> float:
        return self._loop.fleet.wall(self._loop.now())

    async def _why_ended(self, target: Target) -> Why:
        found = await self._jobs.document(target)
        ended = f"{found['state']}: {found['reason']}" if found["reason"] else found["state"]
        if found.get("exit_code") not in (None, 0) and "exit code" not in ended:
            ended += f" (exit code {found['exit_code']})"
        attempts = found.get("attempts") or []
        tail = ""
        if attempts:
            tail = await asyncio.to_thread(self._logs.tail, attempts[-1]["attempt"], LOG_TAIL)
        return Why(state=found["state"], summary=ended, log_tail=tail)

    async def estimate(self, request: Request) -> Response:
        """When it begins and ends, as far as can be foreseen."""
        target = await self._jobs.target(request)
        running = await self._loop.look(lambda fleet, now: _end_of_running(fleet, target, now))
        state = await self._loop.look(lambda fleet, _: job.state if (job := _find(fleet, target)) else target.job.state)
        found: Document = running or {}
        if state == states.PENDING:
            found = await self._foresight.expected(target.job.id)
        words = in_words(found, self._wall()) if found else None
        return json_response({"id": target.job.id, "state": state, **found, "words": words})


def why_fully(target: Target, fleet: Fleet, now: float, tried: Tried) -> Why | Parts:
    """All that can be said of a job that lives. Done on a copy: it takes its time."""
    job = _find(fleet, target)
    if job is None:
        return {}
    task = _task(job, target)
    told = explain.why(fleet, job, task, now, waits=target.index is not None)
    if task is None or task.state == states.PENDING:
        if job.waiting and not job.blocked_on:
            told.holders = holders(fleet, job, now)
        told.changes = change.smallest(fleet, job, now, tried)
        told.change = told.changes[0].words if told.changes else None
    if told.expected is None and told.state in (states.ASSIGNED, states.RUNNING):
        told.expected = _end_of_running(fleet, target, now)
    return told


def _brief(fleet: Fleet, target: Target, now: float) -> Why | None:
    job = _find(fleet, target)
    return explain.why(fleet, job, _task(job, target), now, waits=target.index is not None) if job is not None else None


def _find(fleet: Fleet, target: Target) -> Job | None:
    """None where it has ended: also of a task of an array that goes on."""
    job = fleet.jobs.get(target.job.id)
    if job is None or target.index is None:
        return job
    return job if _task(job, target) is not None or job.has_waiting(target.index) else None


def _task(job: Job, target: Target) -> Task | None:
    index = target.index if target.index is not None else (0 if not job.size else None)
    return (job.tasks or {}).get(index) if index is not None else None


def _end_of_running(fleet: Fleet, target: Target, now: float) -> Document | None:
    """Of what runs: when it is expected to end."""
    job = _find(fleet, target)
    task = _task(job, target) if job is not None else None
    if task is None or task.holder is None or task.state not in (states.ASSIGNED, states.RUNNING):
        return None
    if task.job.terms.service or task.job.terms.model:
        return None
    end = foreseen(*left(fleet, task.holder, now))
    return document(Expected(end=end), fleet.wall(now))


def _as_seen_by(caller: Caller, holder: Holder) -> Holder:
    """Whose job holds a place is nobody else's business."""
    if caller.may_see(holder.user) or holder.kind == "model":
        return holder
    return msgspec.structs.replace(holder, job=OTHERS, task="", user="")
