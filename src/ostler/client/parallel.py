"""A fleet as a backend of joblib: every batch of calls is a job, and joblib decides how many calls make a batch."""

import math
import threading
from collections.abc import Callable
from concurrent.futures import Future
from time import perf_counter
from typing import Any, Unpack

from joblib.parallel import AutoBatchingMixin, FallbackToBackend, ParallelBackendBase

from ostler.client.executor import FleetExecutor
from ostler.client.fleet import Fleet, connect
from ostler.client.resources import Options

NAME = "ostler"


class FleetBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]
    """`fleet` is used as it is and left open; without one, this machine's hub, or that of OSTLER_HUB, is connected to
    for as long as the backend is used. What else is given are options of every job."""

    supports_retrieve_callback = True
    default_n_jobs = -1

    def __init__(
        self,
        nesting_level: int | None = None,
        inner_max_num_threads: int | None = None,
        fleet: Fleet | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(nesting_level=nesting_level, inner_max_num_threads=inner_max_num_threads)
        self._given = fleet
        self._fleet: Fleet | None = None
        self._options = options
        self._executor: FleetExecutor | None = None
        self._is_in_use = False
        self._took = threading.local()
        if fleet is not None:
            fleet.executor(**options)  # what is wrong is told where it was written

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """How many batches the fleet could run side by side; -1: all that it has room for now, and never one: joblib
        makes calls here that it is told to make one by one."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is None:
            return 1
        if n_jobs > 0:
            return n_jobs
        return max(2, self._room() + 1 + n_jobs)

    def configure(self, n_jobs: int = 1, parallel: Any = None, **_: Any) -> int:
        if self._is_in_use:  # by a generator of before that is still read: the end of the one is not that of the other
            other = FleetBackend(self.nesting_level, self.inner_max_num_threads, self._given, **self._options)
            raise FallbackToBackend(other)
        self.parallel = parallel
        found = self.effective_n_jobs(n_jobs)
        self._is_in_use = found > 1  # else joblib makes the calls itself
        return found

    def submit(self, func: Callable[[], Any], callback: Callable[[Any], Any] | None = None) -> Future[Any]:
        """What cannot be sent is a call that failed: joblib would wait for ever for one that it was not told of."""
        try:
            future = self._sent(func)
        except Exception as error:
            future = Future()
            future.set_exception(error)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def _sent(self, func: Callable[[], Any]) -> Future[Any]:
        def timed() -> tuple[Any, float]:  # inside, so that it travels by value: a worker need not have joblib's client
            begun = perf_counter()
            return func(), perf_counter() - begun

        if self._executor is None:
            options: Options = {"name": "joblib", **self._options}
            self._executor = self._connected().executor(**options)
        return self._executor.submit(timed)

    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        value, self._took.s = out.result()
        return value

    def batch_completed(self, batch_size: int, duration: float) -> None:
        """Called after the value was retrieved, by the same thread. How long a batch waited for room says nothing of
        how large the next should be: what it took on its worker does."""
        super().batch_completed(batch_size, getattr(self._took, "s", duration))

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """A call has failed, or took too long: those that have not ended are cancelled, nobody would read them."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=True)

    def terminate(self) -> None:
        self.abort_everything()
        fleet, self._fleet = self._fleet, None
        self._is_in_use = False
        if fleet is not None and self._given is None:
            fleet.close()

    def _connected(self) -> Fleet:
        if self._fleet is None:
            self._fleet = self._given or connect()
        return self._fleet

    def _room(self) -> int:
        asked = self._options.get("resources") or {}
        has = self._connected().status()
        cores = float(has["cores"]["total"]) / (float(asked.get("cpu") or 0) or 1.0)
        gpus = int(asked.get("gpu") or 0)
        return math.floor(min(cores, int(has["gpus"]["total"]) / gpus) if gpus else cores)
