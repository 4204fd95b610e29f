"""Telling somebody what became of a job: after it is durable, off the loop, and for a while again if it was in vain.

What is to be told is read off the lines of the feed as they are committed; where more comes than is told, off the
ledger, later. How far all of it has been told, or given up, is kept there: a hub that starts again goes on from there.
So a notice may come twice, with the same number, and is lost only where nobody took it for as long as it is tried.

Who waits for the next try keeps nobody else waiting, and who does not answer is left alone for a while by all.
"""

import asyncio
import logging
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from urllib.parse import urlsplit

import aiohttp
import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ostler.core.attempt import PREEMPTED_BY
from ostler.core.events import Keep
from ostler.domain import states
from ostler.domain.errors import BadInput
from ostler.domain.job import JobSpec
from ostler.domain.notices import END, FAILED, LOST, NTFY, PREEMPTED, NotifySettings, Target, is_address
from ostler.domain.records import Changes, FeedRecord, JobRecord
from ostler.hub.delivering import Deliverer, Hopeless, Notice
from ostler.hub.documents import timestamp
from ostler.hub.loop import Loop
from ostler.hub.outbound import Forbidden, judge_literal
from ostler.ledger.base import Ledger

SCOPE, TOLD = "notices", "told"
MOST_WAITING = 10_000
MOST_INSISTED = 5_000
"""Of those that were told in vain and wait to be told again."""
AT_ONCE = 16
SILENT_S = 4.0
"""For how long nobody else is sent to where one has just waited for an answer in vain."""
MOST_SILENT = 1_000
PAUSES_S = (1.0, 5.0, 30.0, 120.0, 300.0)
"""Between the tries; after the last it is given up."""
WRITTEN_EVERY_S = 60.0
GONE = ("lost", "lapsed")
"""The states of attempts whose machine did not come back, or came back without them."""

NOTHING = Notice(seq=0, event="", title="", text="", document={})
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""What would end a line in the head of a letter."""

_log = logging.getLogger("ostler.hub")
_spec = msgspec.json.Decoder(JobSpec)


class Notices:
    def __init__(self, loop: Loop, settings: NotifySettings, last_seq: int, url: str = "") -> None:
        self._loop = loop
        self._settings = settings
        self._url = url
        self._deliverer = Deliverer(settings)
        self._asking = {job.id for job in loop.fleet.jobs.values() if job.terms.notifies}
        """Jobs that have not ended and want somebody told."""
        self._for_every = [target for target in settings.targets.values() if target.every]
        self._queue: asyncio.Queue[FeedRecord] = asyncio.Queue(MOST_WAITING)
        self._insisting: set[asyncio.Task[None]] = set()
        self._may_insist = asyncio.Semaphore(MOST_INSISTED)
        self._may_try = asyncio.Semaphore(AT_ONCE)
        self._silent: dict[str, float] = {}
        """Where nobody answered, and until when it is left alone."""
        self._open: set[int] = set()
        """The lines whose notices are not told yet."""
        self._last = last_seq
        self._written = _number(loop.ledger.kept(SCOPE).get(TOLD))
        self._behind = self._written if self._written is not None else last_seq
        """Up to here it was seen what there is to tell."""
        self._is_behind = True
        """What comes is read off the ledger: so begins a hub, and so goes on one that had no room for more."""
        self._fell_behind = asyncio.Event()
        self.counts: Counter[str] = Counter(delivered=0, failed=0)
        self.pauses_s: Sequence[float] = PAUSES_S

    # What has happened

    def saw(self, changes: Changes) -> None:
        """The rows of a commit."""
        for job in changes.new_jobs:
            if job.terms.notifies:
                self._asking.add(job.id)
        for record in changes.feed:
            if record.kind == "job":
                self._look_at(record)
        if changes.feed:
            self._last = changes.feed[-1].seq

    def _look_at(self, record: FeedRecord) -> None:
        state, job_id = record.body.get("state"), record.subject
        if state in states.LIVE and job_id not in self._asking:
            job = self._loop.fleet.jobs.get(job_id)
            if job is not None and job.terms.notifies:
                self._asking.add(job_id)  # it had ended, and was requeued
        if not self._is_behind and (job_id in self._asking or self._for_every) and event_of(record):
            self._add(record)
        if state in states.TERMINAL:
            self._asking.discard(job_id)

    def _add(self, record: FeedRecord) -> None:
        if record.seq <= self._behind:
            return  # it was read off the ledger before it came here
        if self._queue.full():
            self._behind, self._is_behind = record.seq - 1, True
            self._fell_behind.set()
            return
        self._queue.put_nowait(record)
        self._open.add(record.seq)

    # Telling

    async def run(self) -> None:
        """For as long as the hub runs."""
        tellers = [asyncio.create_task(self._tell_all()) for _ in range(AT_ONCE)]
        writer = asyncio.create_task(self._write_at_times())
        try:
            while True:
                await self._take_up()
                await self._fell_behind.wait()
        finally:
            tasks = (*tellers, writer, *self._insisting)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._deliverer.close()

    async def _write_at_times(self) -> None:
        while True:
            await asyncio.sleep(WRITTEN_EVERY_S)
            self._write()

    async def _take_up(self) -> None:
        """What a hub before this one had not told, or for what there was no room: as fast as there is."""
        self._fell_behind.clear()
        while self._behind < self._last:
            page = await self._loop.read(lambda ledger: ledger.feed(after=self._behind))
            jobs = {record.subject for record in page if record.kind == "job" and event_of(record)}
            known = await self._loop.read(lambda ledger: ledger.jobs(sorted(jobs)))  # noqa: B023 (awaited at once)
            for record in page:
                if record.kind == "job" and event_of(record):
                    job = known.get(record.subject)
                    if self._for_every or (job is not None and job.terms.notifies):
                        self._open.add(record.seq)
                        await self._queue.put(record)
                self._behind = record.seq
            if not page:
                break  # what is not in the feed any more is not told
        self._is_behind = False
        self._write()

    async def _tell_all(self) -> None:
        while True:
            record = await self._queue.get()
            try:
                notice, targets = await self._due(record)
                if targets and (owed := await self._try(notice, targets)):
                    await self._may_insist.acquire()
                    task = asyncio.create_task(self._insist(notice, owed))
                    self._insisting.add(task)
                    task.add_done_callback(partial(self._done, record.seq))
                    continue
            except Exception:
                _log.exception("a bug: nobody was told of %s", record.subject)
            self._close(record.seq)

    def _done(self, seq: int, task: "asyncio.Task[None]") -> None:
        self._may_insist.release()
        self._insisting.discard(task)
        if not task.cancelled():
            if (error := task.exception()) is not None:
                _log.error("a bug: a notice was not told", exc_info=error)
            self._close(seq)

    def _close(self, seq: int) -> None:
        self._open.discard(seq)
        if not self._open and self._queue.empty():
            self._write()

    async def _due(self, record: FeedRecord) -> tuple[Notice, list[Target]]:
        """What is to be told, and to whom."""
        job_id = record.subject
        job = (await self._loop.read(lambda ledger: ledger.jobs([job_id]))).get(job_id)
        if job is None:
            return NOTHING, []
        if event_of(record) == LOST and not await self._loop.read(lambda ledger: _was_lost(ledger, record)):
            return NOTHING, []
        spec = (await self._loop.read(lambda ledger: _spec_of(ledger, job_id))) if job.terms.notifies else None
        row = (await self._loop.read(lambda ledger: ledger.tasks([job_id]))).get(job_id)
        notice = _notice(record, job, row.exit_code if row is not None else None, self._url)
        return notice, list(self._targets(spec, notice.event))

    def _targets(self, spec: JobSpec | None, event: str) -> Iterator[Target]:
        """Each once, though it may have been named twice."""
        named = [self._target(text) for text in spec.notify] if spec is not None else []
        asked = tuple(spec.notify_on) if spec is not None else ()
        for target in dict.fromkeys([*(one for one in named if one is not None), *self._for_every]):
            wanted = target.on or (asked if target in named else ())
            if not wanted or event in wanted or (event == FAILED and END in wanted):
                yield target

    def _target(self, text: str) -> Target | None:
        """None: the operator has taken it out since."""
        if is_address(text):
            return Target(url=text)
        return Target(topic=text.removeprefix(NTFY)) if text.startswith(NTFY) else self._settings.targets.get(text)

    async def _insist(self, notice: Notice, owed: dict[Target, str]) -> None:
        for pause_s in self.pauses_s:
            await asyncio.sleep(pause_s)
            owed = await self._try(notice, owed)
            if not owed:
                return
        for target, why in owed.items():
            self._give_up(notice, target, why)

    async def _try(self, notice: Notice, targets: Iterable[Target]) -> dict[Target, str]:
        """Those to whom it is still to be told, and what kept it."""
        owed = {}
        for target in targets:
            place = _shown(_called(target))
            if self._silent.get(place, 0.0) > time.monotonic():
                owed[target] = "it has not answered others just now"
                continue
            try:
                async with self._may_try:
                    await self._deliverer.deliver(notice, target)
                self.counts["delivered"] += 1
            except Hopeless as error:
                self._give_up(notice, target, str(error))
            except (aiohttp.ClientError, OSError, ValueError) as error:
                owed[target] = str(error) or type(error).__name__
                if isinstance(error, TimeoutError):
                    self._leave_alone(place)
        return owed

    def _leave_alone(self, place: str) -> None:
        now = time.monotonic()
        if len(self._silent) >= MOST_SILENT:
            self._silent = {other: until for other, until in self._silent.items() if until > now}
        self._silent[place] = now + SILENT_S

    def _give_up(self, notice: Notice, target: Target, why: str) -> None:
        about = {"job": notice.document["job"]["id"]}
        self.counts["failed"] += 1
        _log.warning("nobody was told of %s by %s: %s", about["job"], _shown(_called(target)), why, extra=about)

    def _write(self) -> None:
        """How far everything was told."""
        told = min(self._open, default=self._last + 1) - 1
        if self._is_behind:
            told = min(told, self._behind)
        if told != self._written:
            self._written = told
            self._loop.post(Keep(scope=SCOPE, key=TOLD, value=str(told).encode()))

    # What a spec may name

    def check(self, spec: JobSpec) -> None:
        """BadInput for a target that the hub does not have, and for an address that it would not go to."""
        for text in spec.notify:
            wrong = ""
            if is_address(text):
                try:
                    judge_literal(urlsplit(text).hostname or "", self._settings.allow)
                except Forbidden as error:
                    wrong = str(error)
            elif not text.startswith(NTFY) and text not in self._settings.targets:
                known = ", ".join(sorted(self._settings.targets)) or "none"
                wrong = f"the hub has no target {text!r} in its ostler.toml; it has {known}"
            if wrong:
                raise BadInput(f"notify: {wrong}", [("notify", wrong)])

    def collect(self) -> Iterator[Metric]:
        told = CounterMetricFamily("ostler_notifications", "Notices of what became of jobs", labels=["outcome"])
        for outcome, count in self.counts.items():
            told.add_metric([outcome], count)
        yield told
        waiting = "Lines of the feed whose notices are not told yet"
        yield GaugeMetricFamily("ostler_notifications_waiting", waiting, value=len(self._open))


def event_of(record: FeedRecord) -> str:
    """What there may be to tell of a job's line, or nothing. Whether it was lost its attempt shows."""
    state, reason = record.body.get("state"), str(record.body.get("reason") or "")
    if state in states.TERMINAL:
        return END if state == states.SUCCEEDED else FAILED
    if state != states.PENDING:
        return ""
    if reason.startswith(PREEMPTED_BY):
        return PREEMPTED
    return LOST if record.body.get("attempt") else ""


def _was_lost(ledger: Ledger, record: FeedRecord) -> bool:
    attempts = ledger.attempts_of(record.subject)
    return any(one.attempt == record.body.get("attempt") and one.state in GONE for one in attempts)


def _spec_of(ledger: Ledger, job_id: str) -> JobSpec | None:
    found = ledger.specs([job_id]).get(job_id)
    return None if found is None else _spec.decode(found)


def _notice(record: FeedRecord, job: JobRecord, exit_code: int | None, url: str) -> Notice:
    event, state, reason = event_of(record), str(record.body.get("state")), str(record.body.get("reason") or "")
    called = f"{job.name} ({job.id})" if job.name else job.id
    what = {LOST: "was lost and waits again", PREEMPTED: "gave way and waits again"}.get(event, state)
    told = {
        "id": job.id,
        "name": job.name,
        "user_id": job.user,
        "state": state,
        "reason": reason,
        "exit_code": exit_code,
        "submitted_at": timestamp(job.submitted_at),
        "finished_at": timestamp(job.finished_at),
    }
    text = f"job {called} {what}" + (f": {reason}" if reason else "")
    document = {"event": event, "seq": record.seq, "at": timestamp(record.at), "text": text, "hub": url, "job": told}
    title = CONTROL.sub("?", f"job {job.name or job.id} {what}")
    return Notice(seq=record.seq, event=event, title=title, text=text, document=document)


def _number(kept: bytes | None) -> int | None:
    return int(kept) if kept is not None and kept.isdigit() else None


def _called(target: Target) -> str:
    return target.url or target.topic or target.command[0]


def _shown(called: str) -> str:
    """Of an address only where it is: what follows is often its secret."""
    return "/".join(called.split("/")[:3]).rpartition("@")[2] if is_address(called) else called
