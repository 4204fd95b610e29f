"""The same fleet for asyncio: every call runs in a bounded pool of threads, and nothing waits in one for long."""

import asyncio
import contextlib
import contextvars
import functools
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, Unpack

from ostler.client.errors import HubUnreachable
from ostler.client.fleet import Fleet, connect
from ostler.client.functions import Outcome
from ostler.client.http import Document
from ostler.client.job import Job, as_text, asked, deadline_of, endure, is_away, outcome_of, still_running
from ostler.client.logs import Leaving, follow
from ostler.client.mapping import FIRST_PAUSE_S, LONGEST_PAUSE_S, Calls
from ostler.client.resources import Options
from ostler.client.streams import Outage
from ostler.client.transport import Patience
from ostler.domain.states import TERMINAL

THREADS = 32
READER = "ostler-log"
PIECES = 64
"""Of a log that is followed so many are read ahead of whoever is told them."""

P = ParamSpec("P")
T = TypeVar("T")


def connect_async(
    hub: str | None = None,
    token: str | None = None,
    state_dir: str | Path | None = None,
    *,
    patience: Patience | None = None,
    ca: str | None = None,
) -> "AsyncFleet":
    """`await` it, or use it in `async with`. What is not given is found as `connect` finds it."""
    return AsyncFleet(connect(hub, token, state_dir, patience=patience, ca=ca))


class AsyncFleet:
    """A fleet for asyncio. Any fleet will do: `AsyncFleet(ostler.local())` is an embedded one."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="ostler-async")

    @property
    def url(self) -> str:
        return self.fleet.url

    def _repr_html_(self) -> str:
        return self.fleet._repr_html_()

    def __await__(self) -> Generator[Any, None, "AsyncFleet"]:
        yield from asyncio.sleep(0).__await__()
        return self

    async def __aenter__(self) -> "AsyncFleet":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self.run(self.fleet.close)
        self._pool.shutdown(wait=False)

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """A call that blocks, in this fleet's threads."""
        loop, context = asyncio.get_running_loop(), contextvars.copy_context()  # a span that is current here is there
        return await loop.run_in_executor(self._pool, functools.partial(context.run, call, *args, **kwargs))

    # Work

    async def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "AsyncJob":
        """As Fleet.submit, with the same options."""
        return AsyncJob(self, await self.run(self.fleet.submit, fn, *args, **kwargs))

    async def submit_command(
        self,
        command: Sequence[str],
        *,
        array: int | None = None,
        snapshot: str | Path | None = None,
        **options: Unpack[Options],
    ) -> "AsyncJob":
        """As Fleet.submit_command."""
        job = await self.run(self.fleet.submit_command, command, array=array, snapshot=snapshot, **options)
        return AsyncJob(self, job)

    async def map(
        self,
        fn: Callable[..., Any],
        *iterables: Iterable[Any],
        ordered: bool = True,
        timeout: float | None = None,
        return_exceptions: bool = False,
        **options: Unpack[Options],
    ) -> AsyncIterator[Any]:
        """For `async for`. As Fleet.map, but nothing is submitted before the first value is asked for."""
        deadline = deadline_of(timeout)
        submitted = await self.run(self.fleet.submit_map, fn, iterables, options, ordered)
        if submitted is None:
            return
        job, calls = submitted
        try:
            async for outcome in self._outcomes(calls, deadline, timeout or 0.0):
                yield outcome.error if return_exceptions and outcome.error is not None else outcome.get()
        except BaseException as error:
            if not calls.done and not is_away(error):
                with contextlib.suppress(Exception):
                    await self.run(job.cancel)
            raise

    async def _outcomes(self, calls: Calls, deadline: float | None, timeout: float) -> AsyncIterator[Any]:
        calls.until(deadline)
        outage = Outage(self.fleet.hub.patience)
        pause_s = FIRST_PAUSE_S
        while not calls.done:
            try:
                found = await self.run(calls.step, 0.0)
            except HubUnreachable as error:
                await self.run(endure, outage, error, calls.job_id, deadline, timeout)
                continue
            outage.over()
            for outcome in found:
                yield outcome
            if not found and not calls.done:
                if deadline is not None and time.monotonic() >= deadline:
                    raise still_running(calls.document, timeout)
                await asyncio.sleep(pause_s)
            pause_s = FIRST_PAUSE_S if found else min(pause_s * 1.5, LONGEST_PAUSE_S)

    # What there is

    async def job(self, job_id: str) -> "AsyncJob":
        return AsyncJob(self, await self.run(self.fleet.job, job_id))

    async def wait(self, job_id: "str | AsyncJob", timeout: float | None = None) -> Document:
        """The job's document when it has ended. Any number of waits take one thread together."""
        wanted = job_id.id if isinstance(job_id, AsyncJob) else job_id
        deadline = deadline_of(timeout)
        document = await self._seen(wanted, deadline, timeout or 0.0)
        if document["state"] in TERMINAL:
            return document
        try:
            async with asyncio.timeout(None if deadline is None else deadline - time.monotonic()):
                return await self._end(document["id"])
        except TimeoutError:
            raise still_running(await self._seen(wanted, deadline, timeout or 0.0), timeout or 0.0) from None

    async def _seen(self, job_id: str, deadline: float | None, timeout: float) -> Document:
        return await self.run(asked, self.fleet.hub, lambda hub: hub.job(job_id), job_id, deadline, timeout)

    async def _end(self, job_id: str) -> Document:
        watch = self.fleet.watch()
        end = watch.future(job_id)
        watch.submitted(job_id)
        try:
            await self.run(watch.look, job_id)
            return await asyncio.wrap_future(end)
        finally:
            watch.forget(job_id, end)

    async def cancel(self, job_id: "str | AsyncJob") -> Document:
        return await self.run(self.fleet.cancel, job_id.id if isinstance(job_id, AsyncJob) else job_id)

    async def why(self, job_id: "str | AsyncJob") -> Document:
        return await self.run(self.fleet.why, job_id.id if isinstance(job_id, AsyncJob) else job_id)

    async def estimate(self, job_id: "str | AsyncJob") -> Document:
        return await self.run(self.fleet.estimate, job_id.id if isinstance(job_id, AsyncJob) else job_id)

    async def whatif(self, **question: Any) -> Document:
        """As Fleet.whatif, with the same options."""
        return await self.run(self.fleet.whatif, **question)

    async def jobs(
        self,
        *,
        state: str | Iterable[str] | None = None,
        name: str | None = None,
        user: str | None = None,
        limit: int | None = 1000,
    ) -> list[Document]:
        return await self.run(self.fleet.jobs, state=state, name=name, user=user, limit=limit)

    async def workers(self) -> list[Document]:
        return await self.run(self.fleet.workers)

    async def status(self) -> Document:
        return await self.run(self.fleet.status)


class AsyncJob:
    """A job that was submitted."""

    def __init__(self, fleet: AsyncFleet, job: Job) -> None:
        self._fleet = fleet
        self._job = job
        self.id = job.id
        self.name = job.name

    def __repr__(self) -> str:
        return f"<AsyncJob {self.id}{' ' + self.name if self.name else ''}>"

    def _repr_html_(self) -> str:
        return self._job._repr_html_()

    async def status(self) -> Document:
        return await self._fleet.run(self._job.status)

    async def done(self) -> bool:
        return await self._fleet.run(self._job.done)

    async def wait(self, timeout: float | None = None) -> Document:
        return await self._fleet.wait(self.id, timeout)

    async def result(self, timeout: float | None = None) -> Any:
        """As Job.result."""
        return (await self._outcome(timeout)).get()

    async def exception(self, timeout: float | None = None) -> BaseException | None:
        return (await self._outcome(timeout)).error

    async def _outcome(self, timeout: float | None) -> Outcome:
        deadline = deadline_of(timeout)
        document = await self.wait(timeout)
        return await self._fleet.run(outcome_of, self._fleet.fleet.hub, document, deadline, timeout or 0.0)

    async def cancel(self) -> Document:
        return await self._fleet.run(self._job.cancel)

    async def requeue(self) -> Document:
        return await self._fleet.run(self._job.requeue)

    async def why(self) -> Document:
        return await self._fleet.run(self._job.why)

    async def logs(self) -> str:
        """Its output so far."""
        return await self._fleet.run(self._job.logs)

    async def follow_logs(self) -> AsyncIterator[str]:
        """Pieces of its output as they come, until it has ended."""
        pieces = _Pieces(self._job.id, Leaving(self._fleet.fleet.hub))
        threading.Thread(target=pieces.read, name=READER, daemon=True).start()
        # of its own: it may be silent for hours, and the pool is for calls that return
        try:
            while isinstance(piece := await pieces.next(), str):
                yield piece
        finally:
            pieces.leave()
        if piece is not None:
            raise piece


class _Pieces:
    """Of a log, on their way from the thread that reads it."""

    def __init__(self, job_id: str, log: Leaving) -> None:
        self._job_id = job_id
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._read: asyncio.Queue[str | Exception | None] = asyncio.Queue()
        self._room = threading.Semaphore(PIECES)

    async def next(self) -> str | Exception | None:
        piece = await self._read.get()
        self._room.release()
        return piece

    def leave(self) -> None:
        self._log.leave()
        self._room.release()

    def read(self) -> None:
        end: Exception | None = None
        try:
            for piece in as_text(follow(self._log, self._job_id, 0, None)):
                self._room.acquire()
                self._log.must_be_wanted()
                self._loop.call_soon_threadsafe(self._read.put_nowait, piece)
        except Exception as error:
            end = error
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(self._read.put_nowait, end)
