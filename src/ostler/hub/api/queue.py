"""The queue over HTTP: who is next, when each is expected to begin, and who has used how much."""

from collections import Counter
from itertools import islice
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from ostler.core.fleet import Fleet, Job
from ostler.domain.states import PENDING
from ostler.hub.access import Caller
from ostler.hub.api.routes import caller_of, json_response, number_in_query
from ostler.hub.documents import Document, timestamp
from ostler.hub.expected import in_words
from ostler.hub.foresight import Foresight
from ostler.hub.loop import Loop

MOST_PLACES = 1000
"""Further behind nobody is told their place: to count on would keep everybody else waiting."""
MOST_USERS = 50


class Place(NamedTuple):
    number: int
    job: Job


class QueueApi:
    def __init__(self, loop: Loop, foresight: Foresight) -> None:
        self._loop = loop
        self._foresight = foresight

    async def listing(self, request: Request) -> Response:
        caller = caller_of(request)
        limit = number_in_query(request, "limit", 100, 1, MOST_PLACES)
        found = await self._loop.look(lambda fleet, now: _look(fleet, caller, now))
        places = found["queue"][:limit]
        rows = await self._loop.read(lambda ledger: ledger.jobs([place["id"] for place in places]))
        if places:
            await self._foresight.present(places[0]["id"])  # so that the next look has something to tell
        wall = self._loop.fleet.wall(self._loop.now())
        for place in places:
            expected = self._foresight.seen(place["id"])
            place |= {
                "name": rows[place["id"]].name if place["id"] in rows else "",
                "expected": expected,
                "words": in_words(expected, wall) if expected else None,
            }
        return json_response({**found, "queue": places, "next": None})


def _look(fleet: Fleet, caller: Caller, now: float) -> Document:
    """Others' jobs are counted in the places, and not shown to whoever may not see them."""
    first = enumerate(islice(fleet.queue.in_order(), MOST_PLACES), 1)
    seen = [Place(number, job) for number, job in first if caller.may_see(job.user)]
    return {
        "waiting": fleet.job_counts[PENDING],
        "queue": [_document(fleet, place, now) for place in seen],
        "users": _users(fleet, caller, now),
    }


def _document(fleet: Fleet, place: Place, now: float) -> Document:
    job, request = place.job, place.job.shape.request
    return {
        "place": place.number,
        "id": job.id,
        "user": job.user,
        "priority": job.terms.priority,
        "tier": job.terms.tier,
        "waiting_since": timestamp(fleet.wall(job.queued)),
        "waited_s": round(now - job.queued, 3),
        "tasks": job.count_waiting(),
        "gpus": request.gpu_count,
        "cores": request.cores_milli / 1000,
        "memory_gb": round(request.memory_mib / 1024, 3),
        "nodes": request.nodes,
    }


def _users(fleet: Fleet, caller: Caller, now: float) -> list[Document]:
    """Who has used least lately goes first: GPU-seconds as they weigh today, and what each holds now."""
    holding: Counter[str] = Counter()
    for worker in fleet.workers.values():
        for held in worker.attempts.values():
            if held.task is not None:
                holding[held.task.job.user] += len(held.held.grant.devices)
    names = {*fleet.usage.users(), *holding}
    shown = [name for name in names if caller.may_see(name)]
    used = sorted(shown, key=lambda name: -fleet.usage.gpu_seconds(name, now))
    return [
        {"user": name, "gpu_seconds": round(fleet.usage.gpu_seconds(name, now), 1), "gpus_held": holding[name]}
        for name in used[:MOST_USERS]
    ]
