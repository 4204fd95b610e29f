"""The ends of many jobs, told by one connection to the hub's feed instead of one request per job."""

import threading
from concurrent.futures import Future
from typing import Any

from ostler.client.errors import HubUnreachable, NotFound, OstlerError
from ostler.client.http import Document, Hub
from ostler.client.streams import Outage, Stream, is_quiet, server_sent_events
from ostler.domain.states import TERMINAL

LOOK_S = 1.0
"""How often to look where the feed cannot be had."""


class Watch:
    """Starts its thread with the first job and keeps it until `close`."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._lock = threading.Condition()
        self._waiting: dict[str, list[Future[Document]]] = {}
        self._closing = threading.Event()
        self._stream: Stream | None = None
        self._thread: threading.Thread | None = None

    def future(self, job_id: str) -> Future[Document]:
        """Done with the job's document when it has ended.

        For a job that may have ended before this call, call `look` too; for one that is submitted afterwards the feed
        is enough, and its id is not looked for before.
        """
        future: Future[Document] = Future()
        with self._lock:
            if self._closing.is_set():
                raise RuntimeError("the fleet is closed")
            self._waiting.setdefault(job_id, []).append(future)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ostler-watch", daemon=True)
                self._thread.start()
            self._lock.notify_all()
        return future

    def look(self, job_id: str) -> None:
        """Ask the hub now."""
        document = self._hub.job(job_id)
        if document["state"] in TERMINAL:
            self._settle(job_id, document)

    def forget(self, job_id: str) -> None:
        with self._lock:
            self._waiting.pop(job_id, None)

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
                self._follow()
                outage.over()
            except HubUnreachable as error:
                if is_quiet(error) or self._closing.is_set():
                    continue
                try:
                    outage.endure(error)
                except HubUnreachable as final:
                    self._fail_all(final)
            except OstlerError:
                self._closing.wait(LOOK_S)
                self._look_at_all()

    def _wait_for_work(self) -> bool:
        with self._lock:
            self._lock.wait_for(lambda: self._waiting or self._closing.is_set())
        return not self._closing.is_set()

    def _follow(self) -> None:
        self._stream = self._hub.open_events()
        try:
            # First the feed, then the look: what ends between the two is told by the one or by the other.
            self._look_at_all()
            events = server_sent_events(self._stream.chunks())
            while not self._closing.is_set():
                event = next(events, None)
                if event is None:
                    return
                if event.get("kind") == "job" and event.get("state") in TERMINAL:
                    self._look_at(str(event.get("subject")))
        finally:
            self._stream.close()
            self._stream = None

    def _look_at_all(self) -> None:
        with self._lock:
            ids = list(self._waiting)
        for job_id in ids:
            if self._closing.is_set():
                return
            self._look_at(job_id)

    def _look_at(self, job_id: str) -> None:
        if job_id not in self._waiting:
            return
        try:
            self.look(job_id)
        except (NotFound, HubUnreachable):
            return  # not submitted yet, or for the next look
        except OstlerError as error:
            self._settle(job_id, error)

    def _settle(self, job_id: str, end: Document | Exception) -> None:
        with self._lock:
            futures = self._waiting.pop(job_id, [])
        for future in futures:
            _finish(future, end)

    def _fail_all(self, error: Exception) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for future in [future for futures in waiting.values() for future in futures]:
            _finish(future, error)


def _finish(future: "Future[Any]", end: Any) -> None:
    if not future.set_running_or_notify_cancel():
        return
    if isinstance(end, Exception):
        future.set_exception(end)
    else:
        future.set_result(end)
