"""What a live view knows of the fleet: asked for again when the feed says that something has changed."""

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from ostler.client.errors import HubUnreachable, NotFound, OstlerError
from ostler.client.http import Hub
from ostler.client.streams import Stream, is_quiet, server_sent_events
from ostler.domain import states

Document = dict[str, Any]
MOST_LISTED = 300
ENDED_LISTED = 100
HOLDING = (states.RUNNING, states.ASSIGNED, states.ORPHANED)
AGAIN_S = 1.0
"""Between two looks for a hub that is away."""
MOST_REASONS, REASONS_KEPT_S = 8, 15.0
SLOWEST_S = 10.0
"""Without any news: what heartbeats bring is not in the feed."""


class Seen(msgspec.Struct, kw_only=True):
    """The fleet at one moment."""

    totals: Document
    workers: list[Document]
    jobs: list[Document]
    models: list[Document]

    def names(self) -> dict[str, str]:
        return {job["id"]: job["name"] for job in self.jobs if job.get("name")}


class Reasons:
    """Why the first of those that wait do so. Each is a question of its own, so the answers are kept for a while."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._known: dict[str, tuple[float, str]] = {}

    def tell(self, waiting: list[Document]) -> None:
        now = time.monotonic()
        known, self._known = self._known, {}
        for job in waiting[:MOST_REASONS]:
            at, told = known.get(job["id"], (-REASONS_KEPT_S, ""))
            if now - at >= REASONS_KEPT_S:
                with contextlib.suppress(NotFound):  # it has ended meanwhile
                    at, told = now, self._hub.why(job["id"], brief=True)["summary"]
            self._known[job["id"]] = (at, told)
            job["reason"] = job.get("reason") or told


def look(hub: Hub, reasons: Reasons, with_ended: bool) -> Seen:
    """Running first, then what waits, in the order of the queue, then what has ended, the newest first."""
    jobs = hub.jobs(state=HOLDING, limit=MOST_LISTED)["jobs"]
    waiting = _waiting(hub, {job["id"] for job in jobs})
    reasons.tell(waiting)
    jobs += waiting
    if with_ended:
        jobs += hub.jobs(state=sorted(states.TERMINAL), limit=ENDED_LISTED)["jobs"]
    return Seen(totals=hub.status(), workers=hub.workers(), jobs=jobs, models=hub.models())


def _waiting(hub: Hub, holding: set[str]) -> list[Document]:
    """The first of the queue; behind them what is in no line yet, as whoever waits for another job. An array of which
    some run already is shown with these."""
    newest = {job["id"]: job for job in hub.jobs(state=states.PENDING, limit=MOST_LISTED)["jobs"][::-1]}
    places = [place for place in hub.queue(MOST_LISTED)["queue"] if place["id"] not in holding]
    first = [newest.pop(place["id"], None) or _in_line(place) for place in places]
    return first + (list(newest.values()) if len(first) < MOST_LISTED else [])


def _in_line(place: Document) -> Document:
    """A job of a long queue, as far as its place tells of it."""
    needs = {"gpu_count": place["gpus"], "min_cpu_cores": place["cores"], "min_memory_gb": place["memory_gb"]}
    return {
        "id": place["id"],
        "name": place["name"],
        "state": states.PENDING,
        "user_id": place["user"],
        "submitted_at": place["waiting_since"],
        "spec": {name: much for name, much in needs.items() if much},
    }


class News:
    """A thread that hears the feed and looks again. It survives a hub that restarts, and says that it is away."""

    def __init__(
        self, hub: Hub, seen: Callable[[Seen], None], away: Callable[[OstlerError], None], every_s: float = 1.0
    ) -> None:
        self._hub = hub
        self._tell_seen = seen
        self._tell_away = away
        self._every_s = every_s
        self._reasons = Reasons(hub)
        self._stale = threading.Event()
        self._closing = threading.Event()
        self._stream: Stream | None = None
        self.with_ended = False
        for target in (self._follow, self._refresh):
            threading.Thread(target=target, name=f"top{target.__name__}", daemon=True).start()

    def close(self) -> None:
        self._closing.set()
        self._stale.set()
        if self._stream is not None:
            self._stream.close()

    def again(self) -> None:
        """Something was done here: look at once."""
        self._stale.set()

    def _follow(self) -> None:
        """Every line of the feed makes what is shown stale, and so does its end."""
        while not self._closing.is_set():
            try:
                self._stream = self._hub.open_events()
                self._stale.set()
                for _ in server_sent_events(self._stream.chunks()):
                    self._stale.set()
            except HubUnreachable as error:
                if is_quiet(error):
                    continue
            except OstlerError:
                pass  # whoever looks is told
            self._stale.set()
            self._closing.wait(AGAIN_S)

    def _refresh(self) -> None:
        while not self._closing.is_set():
            self._stale.wait(SLOWEST_S)
            self._stale.clear()
            if self._closing.is_set():
                return
            began = time.monotonic()
            try:
                self._tell_seen(look(self._hub, self._reasons, self.with_ended))
            except OstlerError as error:
                self._tell_away(error)
                self._stale.set()
            # As long again as it took: a hub with much to tell is not kept busy by its watchers.
            self._closing.wait(max(self._every_s, time.monotonic() - began))
