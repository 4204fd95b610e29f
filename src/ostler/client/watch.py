"""The ends of many jobs, told by one connection to the hub's feed instead of one request per job."""

import logging
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import Any

from ostler.client.errors import HubUnreachable, NotFound, OstlerError
from ostler.client.http import Document, Hub
from ostler.client.streams import Outage, Stream, is_quiet, server_sent_events
from ostler.domain.states import TERMINAL

LOOK_S = 1.0
"""How often to look where the feed cannot be had."""

_log = logging.getLogger("ostler.client")


class Watch:
    """Starts its thread with the first job and keeps it until `close`."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._lock = threading.Condition()
        self._waiting: dict[str, list[Future[Document]]] = {}
        self._submitted: set[str] = set()
        """Of those the ones that the hub is known to have: that it has no such job is the end of them."""
        self._unsure: set[str] = set()
        """May have ended without a word of the feed: to be looked at whenever that shows that the hub is there."""
        self._closing = threading.Event()
        self._stream: Stream | None = None
        self._thread: threading.Thread | None = None

    def future(self, job_id: str) -> Future[Document]:
        """Done with the job's document when it has ended. Call `submitted` once the hub has the job, and `look` too for
        one that may have ended before this call."""
        future: Future[Document] = Future()
        with self._lock:
            if self._closing.is_set():
                raise RuntimeError("the fleet is closed")
            self._waiting.setdefault(job_id, []).append(future)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="ostler-watch", daemon=True)
                self._thread.start()
            self._lock.notify_all()
        return future

    def submitted(self, job_id: str) -> None:
        with self._lock:
            if job_id in self._waiting:
                self._submitted.add(job_id)

    def look(self, job_id: str) -> bool:
        """Ask the hub now. False: it did not answer, and will be asked again."""
        with self._lock:
            self._unsure.discard(job_id)
            if job_id not in self._waiting:
                return True
            was_submitted = job_id in self._submitted  # before the question: it may be while that is answered
        try:
            document = self._hub.job(job_id)
        except HubUnreachable:
            self._unsure.add(job_id)
            return False
        except NotFound as error:
            if was_submitted:
                self._settle(job_id, error)
        except Exception as error:
            self._settle(job_id, error)
        else:
            if document["state"] in TERMINAL:
                self._settle(job_id, document)
        return True

    def forget(self, job_id: str, future: Future[Document]) -> None:
        """Nobody waits for this future any more."""
        with self._lock:
            others = [other for other in self._waiting.pop(job_id, []) if other is not future]
            if others:
                self._waiting[job_id] = others
            else:
                self._submitted.discard(job_id)

    def close(self) -> None:
        with self._lock:
            self._closing.set()
            self._lock.notify_all()
        stream, thread = self._stream, self._thread
        if stream is not None:
            stream.close()
        if thread is not None and thread is not threading.current_thread():
            thread.join(1.0)
        self._fail_all(RuntimeError("the fleet was closed before the job had ended"))

    def _run(self) -> None:
        outage = Outage(self._hub.patience)
        while self._wait_for_work():
            try:
                self._follow(outage)
            except HubUnreachable as error:
                if is_quiet(error) or self._closing.is_set():
                    continue
                try:
                    outage.endure(error)
                except HubUnreachable as final:
                    self._fail_all(final)
                    outage.over()
            except Exception as error:
                if not isinstance(error, OstlerError):
                    _log.exception("the feed cannot be read")
                self._closing.wait(LOOK_S)
                self._look_at_all()

    def _wait_for_work(self) -> bool:
        with self._lock:
            self._lock.wait_for(lambda: self._waiting or self._closing.is_set())
        return not self._closing.is_set()

    def _follow(self, outage: Outage) -> None:
        self._stream = self._hub.open_events()
        try:
            # First the feed, then the look: what ends between the two is told by the one or by the other.
            self._look_at_all()
            events = server_sent_events(self._looking_again(outage.over_with(self._stream.chunks())))
            while not self._closing.is_set():
                event = next(events, None)
                if event is None:
                    return
                if event.get("kind") == "job" and event.get("state") in TERMINAL:
                    self.look(str(event.get("subject")))
        finally:
            self._stream.close()
            self._stream = None

    def _looking_again(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            self._look_at_unsure()
            yield chunk

    def _look_at_all(self) -> None:
        with self._lock:
            self._unsure.update(self._waiting)
        self._look_at_unsure()

    def _look_at_unsure(self) -> None:
        with self._lock:
            unsure = list(self._unsure)
        for job_id in unsure:
            if self._closing.is_set() or not self.look(job_id):
                return

    def _settle(self, job_id: str, end: Document | Exception) -> None:
        with self._lock:
            futures = self._waiting.pop(job_id, [])
            self._submitted.discard(job_id)
        for future in futures:
            _finish(future, end)

    def _fail_all(self, error: Exception) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, {}
            self._submitted.clear()
        for future in [future for futures in waiting.values() for future in futures]:
            _finish(future, error)


def _finish(future: "Future[Any]", end: Any) -> None:
    try:
        if not future.set_running_or_notify_cancel():
            return
        if isinstance(end, Exception):
            future.set_exception(end)
        else:
            future.set_result(end)
    except BaseException:  # of whoever is told by it, even to exit: all others wait for this thread, too
        _log.exception("what was to be done at the end of a job has failed")
