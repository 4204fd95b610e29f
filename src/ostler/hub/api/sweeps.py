"""Sweeps over HTTP: many runs as one thing to look at, cancel and run again."""

import asyncio
from collections.abc import Callable
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from ostler.core.events import CancelRequested, Event, RequeueRequested
from ostler.domain.errors import NotFound
from ostler.hub.api.routes import json_response
from ostler.hub.documents import Document
from ostler.hub.loop import Loop
from ostler.hub.overview import Overview, sweep_document
from ostler.ledger.base import JobView, Ledger

AT_ONCE = 500


class SweepsApi:
    def __init__(self, loop: Loop, overview: Overview) -> None:
        self._loop = loop
        self._overview = overview

    async def listing(self, request: Request) -> Response:
        return json_response({"sweeps": await self._overview.sweeps(), "next": None})

    async def show(self, request: Request) -> Response:
        name, metric = request.path_params["name"], request.query_params.get("metric", "")

        def read(ledger: Ledger) -> Document:
            return sweep_document(*_find(ledger, name), full=True, metric=metric)

        return json_response(await self._loop.read(read))

    async def cancel(self, request: Request) -> Response:
        return await self._change(request, lambda job_id, ref: CancelRequested(ref=ref, job_id=job_id))

    async def requeue(self, request: Request) -> Response:
        return await self._change(request, lambda job_id, ref: RequeueRequested(ref=ref, job_id=job_id))

    async def _change(self, request: Request, make: Callable[[str, int], Event]) -> Response:
        """Some at a time: whoever else has something to say to the hub is heard in between."""
        name = request.path_params["name"]
        _, views = await self._loop.read(lambda ledger: _find(ledger, name))
        ids = [view.job.id for view in views]
        for first in range(0, len(ids), AT_ONCE):
            some = ids[first : first + AT_ONCE]
            await asyncio.gather(*[self._loop.ask(partial(make, job_id)) for job_id in some])
        return await self.show(request)


def _find(ledger: Ledger, text: str) -> tuple[str, list[JobView]]:
    """By its name, or by any beginning of it that means only one."""
    if not text:
        raise NotFound("name a sweep; `ostler sweeps` lists them")
    exact = ledger.manifest_jobs(sweep=text)
    if exact:
        return text, exact
    names = {view.job.sweep for view in ledger.manifest_jobs() if view.job.sweep.startswith(text) and view.job.sweep}
    if not names:
        raise NotFound(f"there is no sweep {text!r}")
    if len(names) > 1:
        raise NotFound(f"{text!r} is the beginning of several sweeps: {', '.join(sorted(names)[:5])}; give more of it")
    name = names.pop()
    return name, ledger.manifest_jobs(sweep=name)
