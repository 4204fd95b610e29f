"""Logs and blobs over HTTP."""

from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ostler.core.fleet import Fleet
from ostler.domain import states
from ostler.domain.errors import BadInput, NotAllowed, NotFound
from ostler.hub.api.direct import announced, told
from ostler.hub.api.downloads import download
from ostler.hub.api.jobs import JobsApi, Target
from ostler.hub.api.routes import caller_of, json_response, number_in_query
from ostler.hub.blobs import Reach
from ostler.hub.feed import QUIET_S, Feed
from ostler.hub.logs import Logs
from ostler.hub.loop import Loop
from ostler.store.blobs import BlobStore
from ostler.store.streaming import pump


class LogsApi:
    def __init__(
        self, loop: Loop, feed: Feed, jobs: JobsApi, logs: Logs, blobs: BlobStore, checkpoints: BlobStore, reach: Reach
    ) -> None:
        self._loop = loop
        self._feed = feed
        self._jobs = jobs
        self._logs = logs
        self._blobs = blobs
        self._checkpoints = checkpoints
        self._reach = reach

    async def read(self, request: Request) -> Response:
        target = await self._jobs.target(request)
        if target.job.size and target.index is None:
            first = f"{target.job.id}.0"
            raise BadInput(f"an array has no log of its own: read that of one of its tasks, such as {first}")
        follow = request.query_params.get("follow", "") in ("1", "true", "yes")
        offset = number_in_query(request, "offset", 0, 0, 2**62)
        tail = number_in_query(request, "tail", 0, 0, 2**62)
        known = [one["attempt"] for one in (await self._jobs.document(target))["attempts"]]
        chosen = request.query_params.get("attempt", "")
        if chosen and chosen not in known:
            raise NotFound(f"{_task_id(target)} has no attempt {chosen!r}")
        if tail and known:
            chosen = chosen or known[-1]
            offset = max(0, self._logs.store.size(chosen) - tail)
        stream = self._one(target, chosen, offset, follow) if chosen else self._newest(request, offset, follow)
        return StreamingResponse(stream, media_type="text/plain; charset=utf-8")

    async def _one(self, target: Target, attempt: str, offset: int, follow: bool) -> AsyncIterator[bytes]:
        async for data in self._logs.read(_task_id(target), attempt, offset, follow):
            yield data

    async def _newest(self, request: Request, offset: int, follow: bool) -> AsyncIterator[bytes]:
        """The newest attempt's output; a follower waits for the first, and goes on to the next where there is one."""
        told = ""
        while True:
            with self._feed.watching((await self._jobs.target(request)).job.id) as changed:
                target = await self._jobs.target(request)  # from within the watch, so that no end is missed
                document = await self._jobs.document(target)
                newest = document["attempts"][-1] if document["attempts"] else None
                if newest is None or newest["attempt"] == told:
                    if not follow or document["state"] in states.TERMINAL:
                        return
                    await changed(QUIET_S)
                    continue
            if told:
                yield f"[ostler: attempt {len(document['attempts'])} on {newest['worker']}]\n".encode()
            async for data in self._logs.read(_task_id(target), newest["attempt"], offset, follow):
                yield data
            told, offset = newest["attempt"], 0

    async def write(self, request: Request) -> Response:
        """A worker brings a piece of a log; only of an attempt that it holds or has held."""
        task_id, attempt = request.path_params["id"], request.query_params.get("attempt", "")
        worker, caller = await self._worker_of(task_id, attempt), caller_of(request)
        if not caller.may_speak_for(worker):
            raise NotAllowed(f"this token is {caller.user}'s; that attempt is {worker}'s")
        offset = number_in_query(request, "offset", 0, 0, 2**62)
        gap = number_in_query(request, "gap", 0, 0, 2**62)
        final = request.query_params.get("final") == "1"
        ending = final or request.query_params.get("ending") == "1"
        size = await self._append(attempt, offset, request.stream(), gap, ending)
        if final:
            self._logs.completed(attempt)
        reached = self._logs.store.reached(attempt)
        return json_response({"size": size} | ({"reached": reached} if reached != size else {}))

    async def _append(self, attempt: str, size: int, stream: AsyncIterator[bytes], gap: int, ending: bool) -> int:
        """What has come of an upload that is cut is kept, and it goes on from there."""

        async def write(piece: list[bytes]) -> None:
            nonlocal size, gap
            size, gap = await self._logs.append(attempt, size, b"".join(piece), gap, ending), 0

        await pump(stream, write)
        return await self._logs.append(attempt, size, b"", gap, ending)

    async def _worker_of(self, task_id: str, attempt: str) -> str:
        def held(fleet: Fleet, _: float) -> str:
            found = fleet.held.get(attempt)
            return found.worker_id if found is not None and found.task_id == task_id else ""

        holder = await self._loop.look(held)
        if holder:
            return holder
        for row in await self._loop.read(lambda ledger: ledger.attempts_of(task_id)):
            if row.attempt == attempt:
                return row.worker
        raise NotFound(f"there is no attempt {attempt!r} of {task_id!r}")

    async def put_blob(self, request: Request) -> Response:
        sha256, caller = request.path_params["sha256"], caller_of(request)
        is_result = caller.role not in ("user", "operator")  # what a worker brings, for as long as there is any room
        if not is_result:
            self._jobs.room()
        if caller.role != "user":
            new = await self._blobs.put(sha256, request.stream(), to_the_last=is_result)
            return json_response({"sha256": sha256}, 201 if new else 200)
        brought = self._reach.brought
        known = brought.by(caller.user, sha256)
        if self._blobs.has(sha256) and not known:
            await self._blobs.proven(sha256, request.stream())
        else:
            await self._blobs.put(sha256, request.stream())
        brought.note(caller.user, sha256)
        return json_response({"sha256": sha256}, 200 if known else 201)

    async def put_checkpoint(self, request: Request) -> Response:
        new = await self._checkpoints.put(request.path_params["sha256"], request.stream())
        return json_response({"sha256": request.path_params["sha256"]}, 201 if new else 200)

    async def ask_for_blob(self, request: Request) -> Response:
        """For whoever would bring it past the hub. A user has to prove to have it, unless that was proven before."""
        sha256, caller = request.path_params["sha256"], caller_of(request)
        if caller.role in ("user", "operator"):
            self._jobs.room()
        known = caller.role != "user" or self._reach.brought.by(caller.user, sha256)
        asked = await self._blobs.ask(sha256, announced(request), "" if known else caller.user)
        if asked is not None and asked.whole and caller.role == "user":
            self._reach.brought.note(caller.user, sha256)
        return told(asked)

    async def ask_for_checkpoint(self, request: Request) -> Response:
        return told(await self._checkpoints.ask(request.path_params["sha256"], announced(request)))

    async def get_checkpoint(self, request: Request) -> Response:
        await self._reach.must_reach_checkpoint(caller_of(request), request.path_params["sha256"])
        return await download(self._checkpoints.shelf, request.path_params["sha256"], request)

    async def get_blob(self, request: Request) -> Response:
        await self._reach.must_reach(caller_of(request), request.path_params["sha256"])
        return await download(self._blobs.shelf, request.path_params["sha256"], request)


def _task_id(target: Target) -> str:
    return target.job.id if target.index is None else f"{target.job.id}.{target.index}"
