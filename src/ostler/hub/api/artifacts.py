"""Artifacts over HTTP: their bytes, what is known of them, and what becomes of those that nobody needs."""

import asyncio
import re
import time
from collections.abc import Callable, Collection, Sequence
from math import inf
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ostler.core.fleet import Fleet
from ostler.domain.errors import BadInput, Hidden, NotFound
from ostler.domain.job import MANIFEST_USER
from ostler.domain.records import ArtifactRecord, Changes
from ostler.hub.access import Caller, speaks_for_one
from ostler.hub.api.direct import announced, told
from ostler.hub.api.downloads import download
from ostler.hub.api.jobs import resolve
from ostler.hub.api.routes import caller_of, json_response, number_in_query, problem
from ostler.hub.documents import Document, timestamp
from ostler.hub.loop import Loop
from ostler.ledger.base import Ledger
from ostler.store.artifacts import YOUNGEST_S, ArtifactStore
from ostler.store.uploads import Span, Taken, WrongUploadOffset

DEFAULT_AGE_S = 86400
LONGEST_AGE_S = 100 * 365 * 86400
MOST_RECORDS = 1000
REPAIRED_AT_ONCE = 1000
REMOVED_AT_ONCE = 100
"""Names for new artifacts are made in between, and nobody waits for long who brings one of these again."""
STATUS = {Taken.NEW: 201, Taken.THERE: 200, Taken.PART: 202}
_RANGE = re.compile(r"bytes (?:([0-9]{1,18})-([0-9]{1,18})|\*)/([0-9]{1,18})", re.ASCII)

Rows = Sequence[tuple[int, ArtifactRecord]]


class ArtifactsApi:
    def __init__(self, loop: Loop, store: ArtifactStore) -> None:
        self._loop = loop
        self._store = store

    async def repair(self) -> None:
        """What a crash between a commit and the names in the folder has left out."""
        before: int | None = None
        while page := await self._loop.read(_before(before)):
            await self._store.repair(record for _, record in page)
            before = page[-1][0]

    def let_go(self) -> None:
        self._store.close()

    # Bytes

    async def put(self, request: Request) -> Response:
        sha256, span = request.path_params["sha256"], _span(request)
        length = request.headers.get("content-length", "")
        size = int(length) if length.isdecimal() and len(length) < 20 else None
        try:
            async with self._store.in_use(sha256):
                taken = await self._store.put(sha256, request.stream(), span, size)
                offset = self._store.offset(sha256) if taken is Taken.PART else self._store.size(sha256)
        except WrongUploadOffset as error:
            refused = problem(error)
            refused.headers["Upload-Offset"] = str(error.offset)
            return refused
        answer = json_response({"sha256": sha256, "size": offset, "whole": taken is not Taken.PART}, STATUS[taken])
        answer.headers["Upload-Offset"] = str(offset)
        return answer

    async def head(self, request: Request) -> Response:
        """For whoever is about to bring it: how much is here already."""
        sha256 = request.path_params["sha256"]
        if self._store.touch(sha256) and (stored := self._store.look(sha256)) is not None:
            size = str(stored.size)
            return Response(headers={"Upload-Offset": size, "Ostler-Complete": "1", "Content-Length": size})
        offset = self._store.offset(sha256)
        return Response(status_code=200 if offset else 404, headers={"Upload-Offset": str(offset)})

    async def ask(self, request: Request) -> Response:
        """For whoever would bring it past the hub."""
        sha256 = request.path_params["sha256"]
        return told(await self._store.ask(sha256, announced(request)))

    async def fetch(self, request: Request) -> Response:
        sha256, caller = request.path_params["sha256"], caller_of(request)
        users, worker = _whose(caller), caller.user if speaks_for_one(caller) else ""
        if users != EVERYBODY or worker:
            rows = await self._loop.read(lambda ledger: _rows(ledger, users, MOST_RECORDS, ids=[sha256]))
            if not any(worker in ("", record.worker) for _, record in rows):
                raise Hidden(f"there is no artifact {sha256}")
        headers = {"ETag": f'"{sha256}"', "Cache-Control": "private, immutable, max-age=31536000"}
        return await download(self._store.shelf, sha256, request, headers)

    # Documents

    async def listing(self, request: Request) -> Response:
        """Each once, where its newest task stands, so a page may have fewer than its limit."""
        caller, query = caller_of(request), request.query_params
        limit = number_in_query(request, "limit", 100, 1, MOST_RECORDS)
        before = number_in_query(request, "cursor", 0, 0, 2**62) or None
        job, model = query.get("job", ""), query.get("model", "")

        def read(ledger: Ledger) -> tuple[list[Document], str | None]:
            users = _whose(caller)
            job_id, is_wanted = _job_filter(ledger, job, caller)
            page = _rows(ledger, users, limit + 1, job_id=job_id, model=model, before=before)
            rows = [(number, record) for number, record in page[:limit] if is_wanted(record)]
            ids = {record.id for _, record in rows}
            every = _rows(ledger, users, MOST_RECORDS, ids=ids, job_id=job_id, model=model) if ids else []
            told = {record.id for number, record in every if before is not None and number >= before}
            return self._documents(rows, every, told), str(page[limit - 1][0]) if len(page) > limit else None

        documents, following = await self._loop.read(read)
        return json_response({"artifacts": documents, "next": following})

    def _documents(self, rows: Rows, every: Rows, told: set[str]) -> list[Document]:
        of: dict[str, list[ArtifactRecord]] = {}
        for _, record in every:
            of.setdefault(record.id, []).append(record)
        newest: dict[str, ArtifactRecord] = {}
        for _, record in rows:
            if record.id not in told:
                newest.setdefault(record.id, record)
        return [self._document(of.get(record.id) or [record]) for record in newest.values()]

    async def show(self, request: Request) -> Response:
        records = await self._records(request)
        return json_response(await self._loop.read(lambda _: self._document(records)))

    async def verify(self, request: Request) -> Response:
        """Read all of it again: whether the bytes are still what their name says."""
        sha256 = (await self._records(request))[0].id
        ok = await self._store.verify(sha256)
        return json_response({"id": sha256, "ok": ok, "here": self._store.has(sha256)})

    async def _records(self, request: Request) -> list[ArtifactRecord]:
        """Those of the artifact that is meant, newest first; of them those that the caller may see."""
        text, users = request.path_params["id"], _whose(caller_of(request))

        def read(ledger: Ledger) -> list[ArtifactRecord]:
            ids = [text] if len(text) == 64 else self._store.matching(text)[: MOST_RECORDS + 1]
            rows = _rows(ledger, users, MOST_RECORDS, ids=ids) if ids else []
            found = [record for _, record in rows]
            if not found:
                raise NotFound(f"there is no artifact {text!r}")
            if len({record.id for record in found}) > 1:
                raise NotFound(f"{text!r} is the beginning of several artifacts' ids; give more of it")
            return found

        return await self._loop.read(read)

    def _document(self, records: list[ArtifactRecord]) -> Document:
        newest = records[0]
        stored = self._store.look(newest.id)
        return {
            "id": newest.id,
            "size": stored.size if stored else newest.size,
            "model": newest.model,
            "mode": newest.mode,
            "created_at": timestamp(newest.created_at),
            "metrics": newest.metrics,
            "path": self._store.found_at(newest, stored),
            "compressed": stored.compressed if stored else False,
            "jobs": [_job_document(record) for record in records],
        }

    # What nobody needs

    async def collect(self, request: Request) -> Response:
        """Remove what no task points to that has succeeded, or waits for the rest of its gang with its part done."""
        chosen_s = number_in_query(request, "older_than_s", DEFAULT_AGE_S, 0, LONGEST_AGE_S)
        older_than_s = max(chosen_s, YOUNGEST_S)
        dry_run = request.query_params.get("dry_run", "") in ("1", "true", "yes")
        untouched_since = time.time() - older_than_s
        # An artifact is touched when an event that names it is posted. So those of which that was before this moment
        # are wanted after the turn, and those of which it was later are touched.
        await self._loop.turn()
        wanted = await self._loop.read(lambda ledger: ledger.wanted_artifacts())
        wanted |= await self._loop.look(_of_unfinished_gangs)
        found = await asyncio.to_thread(self._store.orphans, wanted, untouched_since)
        if not dry_run:
            found = await self._remove(list(found), untouched_since)
        removed = [{"id": sha256, "size": size} for sha256, size in sorted(found.items())]
        return json_response(
            {"removed": removed, "bytes": sum(found.values()), "dry_run": dry_run, "older_than_s": older_than_s}
        )

    async def drop(self, ids: Collection[str]) -> dict[str, int]:
        """Of those that tasks have given up, remove what no other task has made; their sizes."""
        await self._loop.turn()
        return await self._remove(await self._nobodys(ids), time.time() - YOUNGEST_S)

    async def drop_nobodys(self) -> dict[str, int]:
        """What was brought and never named, and what a crash has left of those that were given up."""
        untouched_since = time.time() - DEFAULT_AGE_S
        await self._loop.turn()
        found = await asyncio.to_thread(self._store.orphans, (), untouched_since)
        return await self._remove(await self._nobodys(found), untouched_since)

    async def total_bytes(self) -> int:
        """Of those that tasks have made."""
        sizes = await asyncio.to_thread(self._store.orphans, (), inf)
        return sum(sizes.values()) - sum(sizes[sha256] for sha256 in await self._nobodys(sizes))

    async def _nobodys(self, ids: Collection[str]) -> list[str]:
        """Those that no task has made, be it one whose job has not ended yet."""
        wanted = await self._loop.read(lambda ledger: ledger.wanted_artifacts()) if ids else set()
        unsure, found = sorted(set(ids) - wanted), []
        for first in range(0, len(unsure), REMOVED_AT_ONCE):
            found += await self._loop.read(_without_rows(unsure[first : first + REMOVED_AT_ONCE]))
        return found

    async def _remove(self, ids: list[str], untouched_since: float) -> dict[str, int]:
        """The rows go first: bytes without a row are found the next time."""
        gone: dict[str, int] = {}
        for first in range(0, len(ids), REMOVED_AT_ONCE):
            some = ids[first : first + REMOVED_AT_ONCE]
            async with self._store.removal(some, untouched_since) as going:
                await self._loop.commit(Changes(gone_artifacts=list(going)))
            gone |= going
        return gone


def _of_unfinished_gangs(fleet: Fleet, _: float) -> set[str]:
    running = {held.task.job.id for held in fleet.held.values() if held.task is not None and held.task.job.is_gang}
    gangs = [job for name in running if (job := fleet.jobs.get(name)) is not None]
    return {task.artifact_id for job in gangs for task in (job.tasks or {}).values()}


EVERYBODY = ("",)


def _whose(caller: Caller) -> Collection[str]:
    """Whose artifacts the caller may see. A worker fetches what was made there."""
    return {caller.user, MANIFEST_USER} if caller.role == "user" else EVERYBODY


def _rows(ledger: Ledger, users: Collection[str], limit: int, **asked: Any) -> Rows:
    """Newest first."""
    found = [row for user in users for row in ledger.artifacts(user=user, limit=limit, **asked)]
    return sorted(found, key=lambda row: row[0], reverse=True)[:limit]


def _before(number: int | None) -> Callable[[Ledger], Rows]:
    return lambda ledger: ledger.artifacts(before=number, limit=REPAIRED_AT_ONCE)


def _without_rows(ids: Sequence[str]) -> Callable[[Ledger], list[str]]:
    return lambda ledger: [sha256 for sha256 in ids if not ledger.artifacts(ids=[sha256], limit=1)]


def _job_filter(ledger: Ledger, text: str, caller: Caller) -> tuple[str, Callable[[ArtifactRecord], bool]]:
    """A job's id, and which of its tasks' artifacts are meant."""
    if not text:
        return "", lambda _: True
    target = resolve(ledger, text, "" if caller.sees_all else caller.user)
    if target is None or not caller.may_see(target.job.user):
        raise NotFound(f"there is no job {text!r}")
    task_id = "" if target.index is None else f"{target.job.id}.{target.index}"
    return target.job.id, lambda record: task_id in ("", record.task_id)


def _job_document(record: ArtifactRecord) -> Document:
    return {
        "id": record.job_id,
        "task": record.task_id,
        "name": record.name,
        "user_id": record.user,
        "attempt": record.attempt,
        "worker": record.worker,
        "model": record.model,
        "mode": record.mode,
        "created_at": timestamp(record.created_at),
        "metrics": record.metrics,
    }


def _span(request: Request) -> Span | None:
    """`bytes FIRST-LAST/TOTAL`; with `*` for the range: nothing is missing any more, it only has to be looked at."""
    text = request.headers.get("content-range")
    if text is None:
        return None
    match = _RANGE.fullmatch(text.strip())
    if match is not None:
        total = int(match[3])
        first, end = (int(match[1]), int(match[2]) + 1) if match[1] else (total, total)
        if first <= end <= total:
            return Span(first, end, total)
    raise BadInput(
        f"Content-Range: {text[:80]!r} is not a range such as 'bytes 0-99/1000'", [("Content-Range", "not a range")]
    )
