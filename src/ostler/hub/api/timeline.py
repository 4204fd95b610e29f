"""What ran where and when, over HTTP: for whoever would rather look than read."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from ostler.core.fleet import Attempt, Fleet, Worker
from ostler.domain.errors import BadInput
from ostler.domain.records import AttemptRecord, FeedRecord, JobRecord
from ostler.hub.access import Caller
from ostler.hub.api.routes import caller_of, json_response, number_in_query
from ostler.hub.documents import Document, timestamp
from ostler.hub.loop import Loop
from ostler.ledger.base import Ledger

MOST_BLOCKS = 20_000
MOST_LINES = 10_000
HOUR_S = 3600.0
LAST_TIME = 253_402_300_800.0
"""The first moment of a year of five digits."""
AWAY = ("offline", "cooling", "draining")
"""What a worker is said to be when nothing new goes there."""


class Window(NamedTuple):
    since: float
    until: float


class TimelineApi:
    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    async def show(self, request: Request) -> Response:
        caller, wall = caller_of(request), self._loop.fleet.wall(self._loop.now())
        until = _time(request, "until", wall)
        window = Window(_time(request, "since", until - HOUR_S), until)
        limit = number_in_query(request, "limit", 5000, 1, MOST_BLOCKS)
        machines, running = await self._loop.look(lambda fleet, _: _present(fleet, window))

        def read(ledger: Ledger) -> tuple[list[AttemptRecord], list[FeedRecord], dict[str, JobRecord]]:
            ended = ledger.attempts_ended(after=window.since, before=window.until, limit=limit + 1)
            jobs = {one.job_id for one in ended} | {block["job_id"] for block in running}
            return ended, ledger.worker_lines(MOST_LINES), ledger.jobs(sorted(jobs))

        ended, lines, jobs = await self._loop.read(read)
        live = {block["attempt"] for block in running}
        blocks = running + [_ended(one) for one in ended[:limit] if one.attempt not in live]
        return json_response(
            {
                "since": timestamp(window.since),
                "until": timestamp(window.until),
                "now": timestamp(wall),
                "machines": machines,
                "blocks": [as_seen_by(caller, block, jobs.get(block["job_id"])) for block in blocks],
                "away": _away(reversed(lines), window),
                "cut": len(ended) > limit,
            }
        )


def _time(request: Request, name: str, default: float) -> float:
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < LAST_TIME:
        raise BadInput(f"{name}: {text!r} is no time in seconds since 1970", [(name, "not a time")])
    return found


def _present(fleet: Fleet, window: Window) -> tuple[list[Document], list[Document]]:
    machines = [_machine(worker) for worker in sorted(fleet.workers.values(), key=lambda worker: worker.id)]
    running = [
        _running(held)
        for worker in fleet.workers.values()
        for held in worker.attempts.values()
        if held.task is not None and held.after is None and held.assigned_at <= window.until
    ]
    return machines, running


def _machine(worker: Worker) -> Document:
    return {
        "id": worker.id,
        "cores": worker.offer.cores_milli / 1000,
        "devices": [{"index": one.index, "name": one.name or worker.offer.gpu_type} for one in worker.offer.devices],
    }


def _running(held: Attempt) -> Document:
    assert held.task is not None
    return {
        "attempt": held.id,
        "task_id": held.task_id,
        "job_id": held.task.job.id,
        "worker": held.worker_id,
        "devices": list(held.held.grant.devices),
        "cores": held.held.cores_milli / 1000,
        "state": held.phase,
        "reason": held.stop_reason,
        "started_at": timestamp(held.started_at or held.assigned_at),
        "finished_at": timestamp(held.finished_at),
    }


def _ended(one: AttemptRecord) -> Document:
    return {
        "attempt": one.attempt,
        "task_id": one.task_id,
        "job_id": one.job_id,
        "worker": one.worker,
        "devices": one.devices,
        "cores": one.cores_milli / 1000,
        "state": one.state,
        "reason": one.reason or one.stop_reason,
        "started_at": timestamp(one.started_at or one.assigned_at),
        "finished_at": timestamp(one.finished_at),
    }


def as_seen_by(caller: Caller, block: Document, job: JobRecord | None) -> Document:
    """That something ran there everybody may know; what it was, only who may see it."""
    kind = "job" if job is None else "model" if job.terms.model else "service" if job.terms.service else "job"
    if not (caller.sees_all if job is None else caller.may_see(job.user)):
        hidden: dict[str, Any] = dict.fromkeys(("attempt", "task_id", "job_id", "reason"), "")
        return {**block, **hidden, "kind": kind, "name": "", "user": ""}
    return {**block, "kind": kind, "name": job.name if job else "", "user": job.user if job else ""}


def _away(lines: Iterable[FeedRecord], window: Window) -> list[Document]:
    """When a worker took nothing new, and why: from one line about it to the next."""
    since: dict[str, FeedRecord] = {}
    found: dict[str, list[Document]] = defaultdict(list)
    for line in lines:
        begun = since.pop(line.subject, None)
        if begun is not None:
            found[line.subject].append(_gap(begun, line.at))
        if line.body.get("state") in AWAY:
            since[line.subject] = line
    for name, begun in since.items():
        found[name].append(_gap(begun, None))
    return [gap for gaps in found.values() for gap in gaps if _is_within(gap, window)]


def _gap(begun: FeedRecord, until: float | None) -> Document:
    return {
        "worker": begun.subject,
        "state": begun.body.get("state"),
        "reason": begun.body.get("reason") or "",
        "since": begun.at,
        "until": until,
    }


def _is_within(gap: Document, window: Window) -> bool:
    inside = gap["since"] <= window.until and (gap["until"] is None or gap["until"] > window.since)
    gap["since"], gap["until"] = timestamp(gap["since"]), timestamp(gap["until"])
    return inside
