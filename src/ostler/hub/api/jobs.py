"""Jobs over HTTP: submit, look, cancel, requeue."""

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ostler.core.events import CancelRequested, JobsSubmitted, NewJob, PriorityRequested, RequeueRequested
from ostler.core.fleet import Fleet
from ostler.core.foresight.explain import never_within_quota
from ostler.domain import states
from ostler.domain.errors import BadInput, Hidden, NotAllowed, NotFound, Unreadable
from ostler.domain.job import MANIFEST_USER, MAX_RUNTIME_HOURS, MAX_SPEC_BYTES, JobSpec, decode_spec
from ostler.domain.records import DepartedRecord, EndedTask, JobRecord, ReceiptRecord, TaskRecord
from ostler.hub.access import Caller
from ostler.hub.api.depth import must_be_shallow
from ostler.hub.api.downloads import download
from ostler.hub.api.routes import caller_of, decode_body, json_response, number_in_query, read_body
from ostler.hub.api.templates import Templates
from ostler.hub.blobs import Brought
from ostler.hub.documents import feed_document, job_document, task_document, task_row_document
from ostler.hub.feed import Feed
from ostler.hub.ids import new_job_id
from ostler.hub.loop import Loop
from ostler.hub.new_job import new_job, one_more
from ostler.hub.watched import View
from ostler.ledger.ahead import placed, task_of
from ostler.ledger.base import JobView, Ledger
from ostler.store.base import Shelf
from ostler.store.streaming import STORE, in_thread

MAX_BATCH_BYTES = 64 * 1024 * 1024
MAX_BATCH_JOBS = 20_000
DECODED_AT_ONCE = 200
MAX_WAIT_S = 60.0
MAX_EVENTS = 1000
MAX_RESULTS = 1000
MAX_RESULTS_BYTES = 4 * 1024 * 1024
"""Of values in one answer, which is made in memory while the loop waits. Whatever is larger is fetched by itself."""
_raw_list = msgspec.json.Decoder(list[msgspec.Raw])


class Indices(msgspec.Struct, forbid_unknown_fields=True):
    indices: list[int]


class NewPriority(msgspec.Struct, forbid_unknown_fields=True):
    priority: Annotated[int, msgspec.Meta(ge=-1_000_000, le=1_000_000)]


class Target(msgspec.Struct):
    """What an id in a path stands for."""

    job: JobRecord
    index: int | None = None

    @property
    def task_id(self) -> str:
        return self.job.id if self.index is None else f"{self.job.id}.{self.index}"


class JobsApi:
    def __init__(self, loop: Loop, feed: Feed, blobs: Shelf, templates: Templates) -> None:
        self._loop = loop
        self._feed = feed
        self._blobs = blobs
        self._templates = templates
        self.check_secrets: Callable[[str, list[str]], None] = lambda user, wanted: None
        """BadInput where a user has no secret of a name."""
        self.check_notices: Callable[[JobSpec], None] = lambda spec: None
        """BadInput where a spec names somebody to tell whom the hub cannot tell."""
        self.room: Callable[[], None] = lambda: None
        """NoSpace where there is no room for more jobs."""
        self.foretold: Callable[[str], dict[str, Any] | None] = lambda _: None
        """When a job that waits is expected to begin and end, where somebody has asked lately."""
        self.brought: Brought | None = None
        """Whose blobs are whose, where jobs are taken in."""

    async def submit(self, request: Request) -> Response:
        self.room()
        body = await read_body(request, MAX_BATCH_BYTES)
        caller = caller_of(request)
        many = body.lstrip()[:1] == b"["
        specs = [] if many else [_decode_one(body, self._templates)]
        jobs = await self._many(body, caller) if many else [self._one(specs[0], caller)]
        await self._must_see(caller, {name for job in jobs for name in job.depends_on} - {job.id for job in jobs})
        key = request.headers.get("idempotency-key", "")
        receipt = None
        if key:
            digest = hashlib.sha256(body).hexdigest()
            receipt = ReceiptRecord(key=f"{len(caller.user)}:{caller.user}:{key[:256]}", digest=digest, ids=[], at=0.0)
        answer = await self._loop.ask(lambda ref: JobsSubmitted(ref=ref, jobs=jobs, receipt=receipt))
        status = 201 if answer.created else 200
        if many:
            return json_response({"ids": answer.ids}, status)
        ident = answer.ids[0]
        state = states.PENDING if answer.created else await self._loop.read(lambda ledger: _state_of(ledger, ident))
        return json_response({"id": ident, "state": state, "notes": _notes(specs[0])}, status)

    async def _many(self, body: bytes, caller: Caller) -> list[NewJob]:
        jobs: list[NewJob] = []
        spec, before = JobSpec(), b""
        for position, raw in enumerate(map(bytes, _raw_specs(body))):
            if position % DECODED_AT_ONCE == 0:
                await asyncio.sleep(0)  # thousands of specs must not keep workers waiting
            if raw == before and not jobs[-1].chosen:
                jobs.append(one_more(jobs[-1], spec, new_job_id()))
                continue
            where = f"[{position}]."
            must_be_shallow(raw, f"[{position}]")
            spec, before = decode_spec(self._templates.resolve(raw, where), where), raw
            jobs.append(self._one(spec, caller))
        return jobs

    def _one(self, spec: JobSpec, caller: Caller) -> NewJob:
        if self.brought is not None:
            self.brought.must_be_known(caller, [spec])
        job = _submitted(spec, caller)
        self.check_secrets(spec.user_id, spec.secrets)
        self.check_notices(spec)
        return job

    async def _must_see(self, caller: Caller, names: set[str]) -> None:
        """To wait for somebody else's job would be to hear how it ended."""
        if caller.sees_all or not names:
            return
        owners = await self._loop.read(lambda ledger: _owners(ledger, names))
        for name in sorted(owners):
            if not caller.may_see(owners[name]):
                raise _no_such_job(name)

    async def waited_for(
        self, caller: Caller, names: set[str]
    ) -> tuple[dict[str, JobRecord], dict[str, DepartedRecord]]:
        """What a job that is not submitted would wait for: what there is, and what is gone. BadInput as of one that
        is submitted."""
        await self._must_see(caller, names)
        known, departed = await self._loop.read(
            lambda ledger: (ledger.jobs(sorted(names)), ledger.departed(sorted(names))) if names else ({}, {})
        )
        for name in sorted(names - known.keys() - departed.keys()):
            raise _no_such_job(name)
        return known, departed

    async def listing(self, request: Request) -> Response:
        caller = caller_of(request)
        query = request.query_params
        wanted = _states_in("state", query.get("state", "")) or _states_in("status", query.get("status", ""))
        user = query.get("user", "")
        limit = number_in_query(request, "limit", 100, 1, 1000)
        before = number_in_query(request, "cursor", 0, 0, 2**62) or None
        name = query.get("name", "")
        users = [user] if caller.sees_all else [one for one in (caller.user, MANIFEST_USER) if user in ("", one)]

        def read(ledger: Ledger) -> list[JobView]:
            views = [
                view
                for one in dict.fromkeys(users)
                for view in ledger.list_jobs(states=wanted, user=one, name=name, before=before, limit=limit + 1)
            ]
            return sorted(views, key=lambda view: -view.job.seq)

        found = await self._loop.read(read)
        page = found[:limit]
        following = str(page[-1].job.seq) if len(found) > limit else None
        return json_response({"jobs": [self._listed(view) for view in page], "next": following})

    def _listed(self, view: JobView) -> dict[str, Any]:
        document = self._with_cause(view.job.id, job_document(view.job, view.task))
        expected = self.foretold(view.job.id) if view.job.state == states.PENDING else None
        return document if expected is None else {**document, "expected": expected}

    def _with_cause(self, job_id: str, document: dict[str, Any]) -> dict[str, Any]:
        """With a reason for a job that a quota never lets start: its row has none, because a job only waits."""
        job = self._loop.fleet.jobs.get(job_id)
        if job is not None and document["state"] == states.PENDING and not document["reason"]:
            document["reason"] = never_within_quota(self._loop.fleet, job)
        return document

    async def show(self, request: Request) -> Response:
        caller, text = caller_of(request), request.path_params["id"]
        deadline = time.monotonic() + min(_seconds(request, "wait"), MAX_WAIT_S)
        if self._is_under_way(text, caller) and (view := await self._until_ended(text, caller, deadline)) is not None:
            return json_response(job_document(view.job, view.task, list(view.attempts.values())))
        watched = text.partition(".")[0]
        is_id = False
        while True:
            with self._feed.watching(watched) as changed:  # from before the look, so that no change is missed
                left = deadline - time.monotonic()
                if left > 0 and self._is_under_way(text, caller):
                    is_id = True
                    await changed(left)
                    continue
                target, document = await self._seen(caller, text, is_id=is_id)
                if document["state"] in states.TERMINAL or left <= 0:
                    return json_response(await self._with_progress(target, document))
                if watched == target.job.id:
                    await changed(left)
                watched = target.job.id

    async def _until_ended(self, job_id: str, caller: Caller, deadline: float) -> View | None:
        """None: it has not ended by then, or it is not single, or its rows are not at hand."""
        if time.monotonic() >= deadline or not self._loop.ledger.is_at_hand:
            return None
        with self._feed.watched.following(self._loop.ledger, job_id) as view:
            while view is not None:
                with self._feed.watching(job_id) as changed:
                    left = deadline - time.monotonic()
                    if left <= 0 or not self._is_under_way(job_id, caller):
                        return view if view.job.state in states.TERMINAL else None
                    await changed(left)
        return None

    def _is_under_way(self, job_id: str, caller: Caller) -> bool:
        """Known without a look into the ledger: memory is ahead of it, and an end is told once it is durable."""
        job = self._loop.fleet.jobs.get(job_id)
        if job is None or job.state in states.TERMINAL or self._feed.closed:
            return False
        return caller.may_see(job.user)

    async def _seen(self, caller: Caller, text: str, *, is_id: bool = False) -> tuple[Target, dict[str, Any]]:
        """The job that this means, and all about it, by one look."""

        def read(ledger: Ledger) -> tuple[Target, dict[str, Any]]:
            target = _allowed(caller, text, resolve(ledger, text, _user_of(caller)))
            return target, _document(ledger, target)

        return await self._loop.read(read, by_key=is_id)

    async def document(self, target: Target) -> dict[str, Any]:
        return await self._with_progress(target, await self._loop.read(lambda ledger: _document(ledger, target)))

    async def _with_progress(self, target: Target, document: dict[str, Any]) -> dict[str, Any]:
        if document["state"] in states.LIVE:
            document["progress"] = await self._loop.look(lambda fleet, _: _progress(fleet, target.task_id))
        return self._with_cause(target.job.id, document)

    async def tasks(self, request: Request) -> Response:
        target = await self.target(request)
        after = number_in_query(request, "after", -1, -1, 2**31)
        limit = number_in_query(request, "limit", 1000, 1, 10_000)
        if request.query_params.get("ended"):
            ended = await self._loop.read(
                lambda ledger: ledger.ended_tasks_of(target.job.id, after=after, limit=limit + 1)
            )
            return json_response({"tasks": ended[:limit], "next": _following(ended, limit)})
        rows = await self._loop.read(lambda ledger: placed(ledger, target.job.id, after=after, limit=limit + 1))
        return json_response({"tasks": list(map(task_row_document, rows[:limit])), "next": _following(rows, limit)})

    async def events(self, request: Request) -> Response:
        target = await self.target(request)
        after = number_in_query(request, "after", 0, 0, 2**62)
        newest = number_in_query(request, "newest", 0, 1, MAX_EVENTS)
        limit = newest or MAX_EVENTS
        task = target.task_id if target.index is not None else ""
        rows = await self._loop.read(
            lambda ledger: ledger.feed(
                after=after, subject=target.job.id, task=task, newest=newest > 0, limit=limit + 1
            )
        )
        more = len(rows) > limit
        page = rows[-limit:] if newest else rows[:limit]
        following = page[-1].seq if more and not newest else None
        events = [feed_document(row) for row in page]
        return json_response({"events": events, "next": following, "older": more and newest > 0})

    async def cancel(self, request: Request) -> Response:
        target = await self.target(request, changing=True)
        await self._loop.ask(lambda ref: CancelRequested(ref=ref, job_id=target.job.id, index=target.index))
        return json_response(await self.document(await self.target(request)))

    async def requeue(self, request: Request) -> Response:
        target = await self.target(request, changing=True)
        await self._loop.ask(lambda ref: RequeueRequested(ref=ref, job_id=target.job.id, index=target.index))
        return json_response(await self.document(await self.target(request)))

    async def prioritize(self, request: Request) -> Response:
        target = await self.target(request, changing=True)
        wanted = decode_body(await read_body(request, MAX_SPEC_BYTES), NewPriority).priority
        await self._loop.ask(lambda ref: PriorityRequested(ref=ref, job_id=target.job.id, priority=wanted))
        return json_response(await self.document(await self.target(request)))

    async def result(self, request: Request) -> Response:
        target = await self.target(request)
        task_id = target.task_id
        task = await self._loop.read(lambda ledger: ledger.tasks([task_id]).get(task_id))
        if task is None or self._size_of_result(task) is None:
            raise NotFound(f"{task_id} has no result")
        if task.result is None:
            return await download(self._blobs, _blob_of(task), request)
        return Response(task.result, media_type="application/octet-stream")

    async def results(self, request: Request) -> Response:
        target = await self.target(request)
        body = await read_body(request, MAX_SPEC_BYTES)
        wanted = decode_body(body, Indices).indices[:MAX_RESULTS]
        ids = {f"{target.job.id}.{index}": index for index in wanted}
        rows = await self._loop.read(lambda ledger: ledger.tasks(list(ids)))
        found: dict[str, bytes] = {}
        left_out: list[int] = []
        room = MAX_RESULTS_BYTES
        for task_id, index in ids.items():
            size = self._size_of_result(rows[task_id]) if task_id in rows else None
            if size is None:
                continue
            if size > room:
                left_out.append(index)
                continue
            room -= size
            found[str(index)] = await self._result_bytes(rows[task_id])
        return json_response({"results": found, "left_out": left_out})

    def _size_of_result(self, task: TaskRecord) -> int | None:
        """None: it has left none."""
        if task.result is not None:
            return len(task.result)
        blob = _blob_of(task)
        stored = self._blobs.look(blob) if self._blobs.has(blob) else None
        return stored.size if stored is not None else None

    async def _result_bytes(self, task: TaskRecord) -> bytes:
        return task.result if task.result is not None else await in_thread(STORE, _read, self._blobs, _blob_of(task))

    async def target(self, request: Request, *, changing: bool = False) -> Target:
        """The job that the path's id means: its id, a task's, an unambiguous prefix, or a name. Others' jobs
        do not exist."""
        return await self.find(caller_of(request), request.path_params["id"], changing=changing)

    async def find(self, caller: Caller, text: str, *, changing: bool = False) -> Target:
        is_id = text.partition(".")[0] in self._loop.fleet.jobs
        target = await self._loop.read(lambda ledger: resolve(ledger, text, _user_of(caller)), by_key=is_id)
        return _allowed(caller, text, target, changing=changing)


def _following(tasks: Sequence[TaskRecord | EndedTask], limit: int) -> int | None:
    """After which index the next page begins, where one more than a page was found."""
    return tasks[limit - 1].index if len(tasks) > limit else None


def _no_such_job(name: str) -> BadInput:
    return BadInput(f"depends_on: there is no job {name}", [("depends_on", f"there is no job {name}")])


def _owners(ledger: Ledger, names: set[str]) -> dict[str, str]:
    """Whose jobs these are, or were."""
    departed = {gone.id: gone.owner for gone in ledger.departed(sorted(names)).values()}
    return departed | {job.id: job.user for job in ledger.jobs(sorted(names)).values()}


def _blob_of(task: TaskRecord) -> str:
    """Where its result is, if that did not go into its row."""
    return task.result_id or task.artifact_id


def _read(blobs: Shelf, blob: str) -> bytes:
    with blobs.open(blob) as file:
        return file.read()


def _user_of(caller: Caller) -> str:
    """Among whose jobs names and beginnings of ids are looked for; "": everybody's."""
    return "" if caller.sees_all else caller.user


def _allowed(caller: Caller, text: str, target: Target | None, *, changing: bool = False) -> Target:
    if target is None:
        raise NotFound(f"there is no job {text!r}")
    if not caller.may_see(target.job.user):
        raise Hidden(f"there is no job {text!r}")
    if changing and (caller.role == "viewer" or _user_of(caller) not in ("", target.job.user)):
        raise NotAllowed(f"a {caller.role} may not change this job: only its owner or an operator may")
    return target


def _document(ledger: Ledger, target: Target) -> dict[str, Any]:
    if target.index is not None:
        return task_document(target.job, target.index, *task_of(ledger, target.job.id, target.index))
    task = ledger.tasks([target.task_id]).get(target.task_id)
    return job_document(target.job, task, ledger.attempts_of(target.task_id))


def _progress(fleet: Fleet, task_id: str) -> object:
    """What its worker last said about how far it is."""
    task = fleet.find_task(task_id)
    return task.holder.progress if task is not None and task.holder is not None else None


def _state_of(ledger: Ledger, job_id: str) -> str:
    """Of one that is there, or was."""
    found = ledger.jobs([job_id]) or ledger.departed([job_id])
    if job_id not in found:
        raise NotFound(f"the job {job_id} of this Idempotency-Key has ended and is gone; use a new key to run it again")
    return found[job_id].state


def resolve(ledger: Ledger, text: str, user: str) -> Target | None:
    found = _resolve_job(ledger, text, user)
    if found is not None:
        return Target(found)
    name, _, index = text.rpartition(".")
    if not name or not index.isdecimal() or len(index) > 9:
        return None
    job = _resolve_job(ledger, name, user)
    if job is None or not job.size or int(index) >= job.size:
        return None
    return Target(job, int(index))


def _resolve_job(ledger: Ledger, text: str, user: str) -> JobRecord | None:
    exact = ledger.jobs([text]).get(text)
    if exact is not None and user in ("", exact.user):
        return exact
    users = dict.fromkeys((user, MANIFEST_USER)) if user else [""]
    for one in users:
        named = ledger.newest_named(text, user=one)
        if named is not None:
            return ledger.jobs([named])[named]
    found = [job_id for one in users for job_id in ledger.matching_ids(text, user=one)]
    if len(found) > 1:
        raise NotFound(f"{text!r} is the beginning of several jobs' ids; give more of it")
    # Somebody else's comes last: whether it is there must not change what one's own names stand for.
    return ledger.jobs(found)[found[0]] if found else exact


def _decode_one(body: bytes, templates: Templates) -> JobSpec:
    _must_be_json(body)
    must_be_shallow(body[:MAX_SPEC_BYTES])
    return decode_spec(templates.resolve(body))


def _raw_specs(body: bytes) -> list[msgspec.Raw]:
    try:
        raw = _raw_list.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(f"the body is not JSON: {error}") from None
    if len(raw) > MAX_BATCH_JOBS:
        raise BadInput(
            f"{len(raw)} specs in one submit; at most {MAX_BATCH_JOBS} are taken", [("body", "too many specs")]
        )
    return raw


def _must_be_json(body: bytes) -> None:
    if len(body) > MAX_SPEC_BYTES:
        return  # refused by its size, whatever it is
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(f"the body is not JSON: {error}") from None


def _submitted(spec: JobSpec, caller: Caller) -> NewJob:
    if spec.user_id and spec.user_id != caller.user and caller.role != "operator":
        raise NotAllowed("user_id: only an operator may submit for somebody else")
    chosen = bool(spec.id)
    spec.id = spec.id or new_job_id()
    spec.user_id = spec.user_id or caller.user
    return new_job(spec, chosen=chosen)


def _notes(spec: JobSpec) -> list[str]:
    if spec.type == "batch" and spec.max_runtime_hours > MAX_RUNTIME_HOURS:
        return [f"max_runtime_hours: {spec.max_runtime_hours:g} was cut to {MAX_RUNTIME_HOURS:g}"]
    return []


def _states_in(name: str, text: str) -> list[str]:
    """Either parameter takes both spellings. `running` is in both: as a status it is also that of an orphan."""
    found: list[str] = []
    for word in filter(None, map(str.strip, text.split(","))):
        same = [state for state in states.STATES if state == word]
        alike = [state for state, status in states.STATUS.items() if status == word]
        if not same and not alike:
            known = states.STATES if name == "state" else dict.fromkeys(states.STATUS.values())
            raise BadInput(f"{name}: {word!r} is not one of {', '.join(known)}", [(name, f"unknown {name}")])
        found += same or alike if name == "state" else same + alike
    return list(dict.fromkeys(found))


def _seconds(request: Request, name: str) -> float:
    try:
        return max(0.0, float(request.query_params.get(name) or 0))
    except ValueError:
        raise BadInput(f"{name}: not a number of seconds", [(name, "not a number")]) from None
