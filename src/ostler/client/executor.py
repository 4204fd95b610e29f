"""A fleet as a `concurrent.futures.Executor`, for code that already speaks that."""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from concurrent.futures import wait as wait_for_futures
from typing import TYPE_CHECKING, Any

from ostler.client.errors import HubUnreachable, OstlerError
from ostler.client.functions import Outcome
from ostler.client.http import Document
from ostler.client.job import Job, outcome_of
from ostler.client.resources import Options

if TYPE_CHECKING:
    from ostler.client.fleet import Fleet

_log = logging.getLogger("ostler.client")


class JobFuture(Future[Any]):
    """The future of one job. Unlike a thread's, a call that runs already can be cancelled: its job is."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job = job
        self._settling = threading.RLock()  # whoever is told that it is cancelled may cancel it again

    def cancel(self) -> bool:
        if self.withdraw():
            _cancel_all([self.job])
        return self.cancelled()

    def withdraw(self) -> bool:
        """Cancel this future and not yet its job. False: it was cancelled or done before."""
        with self._settling:
            if self.cancelled() or not super().cancel():
                return False
            # Told to `wait` and `as_completed` here: no worker thread will come by to do it.
            self.set_running_or_notify_cancel()
            return True

    def settle(self, value: Any, error: BaseException | None) -> None:
        with self._settling:
            if self.cancelled() or not self.set_running_or_notify_cancel():
                return
        if error is not None:
            self.set_exception(error)
        else:
            self.set_result(value)


class FleetExecutor(Executor):
    """Every call is a job with the options given here; `map` makes one array of them."""

    def __init__(self, fleet: "Fleet", options: Options) -> None:
        self._fleet = fleet
        self._options = options
        self._lock = threading.Lock()
        self._shut = False
        self._futures: set[JobFuture] = set()
        self._maps: list[Job] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> JobFuture:
        self._must_be_open()
        job, end = self._fleet.submit_watched(fn, args, kwargs, self._options)
        future = JobFuture(job)
        with self._lock:
            self._futures.add(future)
        future.add_done_callback(lambda _: self._forget(future))
        end.add_done_callback(lambda ended: self._settle(future, ended))
        return future

    def map(
        self,
        fn: Callable[..., Any],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        **_: Any,
    ) -> Iterator[Any]:
        """`chunksize` is taken and not needed: workers are sent many calls at a time as it is."""
        self._must_be_open()
        results = self._fleet.map(fn, *iterables, timeout=timeout, **self._options)
        if results.job is not None:
            self._maps.append(results.job)
        return results

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._lock:
            self._shut = True
            futures = list(self._futures)
        if cancel_futures:
            _cancel_all([future.job for future in futures if future.withdraw()] + self._maps)
        if wait:
            wait_for_futures(futures)
            for job in self._maps:
                job.wait()

    def _must_be_open(self) -> None:
        if self._shut:
            raise RuntimeError("cannot schedule new futures after shutdown")

    def _forget(self, future: JobFuture) -> None:
        with self._lock:
            self._futures.discard(future)

    def _settle(self, future: JobFuture, ended: Future[Document]) -> None:
        if future.cancelled():
            return
        try:
            outcome = outcome_of(self._fleet.hub, ended.result())
        except BaseException as error:  # whatever it is: whoever calls this only logs it, and the future would wait on
            outcome = Outcome(error=error)
        future.settle(outcome.value, outcome.error)


def _cancel_all(jobs: list[Job]) -> None:
    """Those that have ended meanwhile are left as they are, and so are all others once the hub does not answer."""
    for place, job in enumerate(jobs):
        try:
            job.cancel()
        except HubUnreachable as error:
            left = ", ".join(other.id for other in jobs[place:])
            _log.warning("%s; these jobs could not be cancelled and go on: %s", error, left)
            return
        except OstlerError:
            continue
