"""A fleet as a `concurrent.futures.Executor`, for code that already speaks that."""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from concurrent.futures import wait as wait_for_futures
from typing import TYPE_CHECKING, Any

from ostler.client.errors import OstlerError
from ostler.client.http import Document
from ostler.client.job import Job, outcome_of
from ostler.client.resources import Options

if TYPE_CHECKING:
    from ostler.client.fleet import Fleet


class JobFuture(Future[Any]):
    """The future of one job. Unlike a thread's, a call that runs already can be cancelled: its job is."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job = job
        self._settling = threading.RLock()  # whoever is told that it is cancelled may cancel it again

    def cancel(self) -> bool:
        with self._settling:
            if self.cancelled():
                return True
            if not super().cancel():
                return False
            # Told to `wait` and `as_completed` here: no worker thread will come by to do it.
            self.set_running_or_notify_cancel()
        with contextlib.suppress(OstlerError):
            self.job.cancel()
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
        self._futures: set[Future[Any]] = set()
        self._maps: list[Job] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> JobFuture:
        self._must_be_open()
        job, end = self._fleet.submit_watched(fn, args, kwargs, self._options)
        future = JobFuture(job)
        with self._lock:
            self._futures.add(future)
        future.add_done_callback(self._forget)
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
            for future in futures:
                future.cancel()
            for job in self._maps:
                with contextlib.suppress(OstlerError):
                    job.cancel()
        if wait:
            wait_for_futures(futures)
            for job in self._maps:
                job.wait()

    def _must_be_open(self) -> None:
        if self._shut:
            raise RuntimeError("cannot schedule new futures after shutdown")

    def _forget(self, future: Future[Any]) -> None:
        with self._lock:
            self._futures.discard(future)

    def _settle(self, future: JobFuture, ended: Future[Document]) -> None:
        if future.cancelled():
            return
        error = ended.exception()
        if error is not None:
            future.settle(None, error)
            return
        outcome = outcome_of(self._fleet.hub, ended.result())
        future.settle(outcome.value, outcome.error)
