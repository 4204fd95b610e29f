"""A map: one array job, its calls' outcomes fetched in batches as they are wanted."""

import base64
import contextlib
import time
from collections.abc import Generator, Iterator
from typing import Any

from ostler.client import notebook
from ostler.client.errors import HubUnreachable
from ostler.client.functions import Outcome
from ostler.client.http import RESULTS_PER_CALL, Document, Hub
from ostler.client.job import Job, call_outcome, deadline_of, endure, failure, is_away, still_running
from ostler.client.streams import Outage
from ostler.domain.states import FAILED, SUCCEEDED, TERMINAL

FIRST_BATCH = 64
BATCH_BYTES = 4 * 1024 * 1024
"""As much as the hub puts into one answer."""
ROWS = 1000
FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 1.0
PATIENCE = 0.05
"""Of a map that has gone on for so long, values may come later by this part of it: each time they are asked for costs
the hub as much as several calls do."""
MOST_PATIENCE_S = 0.25
SURE = 8
"""The last is not there after a pause that is this much shorter than what they all are likely to take."""


class Calls:
    """The outcomes of an array's calls. `step` asks the hub once and never waits longer than it is told to."""

    def __init__(self, hub: Hub, job_id: str, spec: Document, *, ordered: bool = True) -> None:
        self.job_id = job_id
        self.size = int(spec["array"])
        self.told = 0
        self.document: Document = {"id": job_id, "state": "pending"}
        self._hub = hub
        self._spec = spec
        self._ordered = ordered
        self._batch = FIRST_BATCH
        self._low = 0
        """Every call below this one is told; those above that are told too are in `_ahead`."""
        self._ahead: set[int] = set()
        self._ready: dict[int, Outcome] = {}
        self._over = False
        self._left_out = False
        """The last answer had no room for all that was there."""

    @property
    def done(self) -> bool:
        return self.told >= self.size

    def until(self, deadline: float | None) -> None:
        """No answer is waited for much longer than until then."""
        self._hub = self._hub.until(deadline)

    def step(self, wait_s: float) -> list[Outcome]:
        """Outcomes that can be told now, in order where that was asked for; nothing after `wait_s` without any."""
        self._fetch()
        found = self._take()
        if not found and not self.done:
            if self._over:
                return self._missing()
            self.document = self._hub.job(self.job_id, wait=wait_s)
            self._over = self.document["state"] in TERMINAL
        return found

    def outcomes(self, deadline: float | None, timeout: float = 0.0) -> Iterator[Outcome]:
        self.until(deadline)
        outage = Outage(self._hub.patience)
        pause_s = FIRST_PAUSE_S
        begun, first_at = time.monotonic(), 0.0
        while not self.done:
            asked = self._batch
            left_s = float("inf") if deadline is None else deadline - time.monotonic()
            try:
                found = self.step(max(0.0, min(pause_s, left_s)))
            except HubUnreachable as error:
                endure(outage, error, self.job_id, deadline, timeout)
                continue
            outage.over()
            yield from found
            if not found and left_s <= 0 and not self._over:
                raise still_running(self.document, timeout)
            shortest_s = max(FIRST_PAUSE_S, min(PATIENCE * (time.monotonic() - begun), MOST_PATIENCE_S))
            pause_s = shortest_s if found else min(pause_s * 1.5, LONGEST_PAUSE_S)
            if found and not first_at:
                first_at = time.monotonic()
            if found and len(found) < asked and not self._left_out:
                now = time.monotonic()  # whoever reads them may have taken long
                self._gather(shortest_s if deadline is None else min(shortest_s, deadline - now), now - first_at)

    def _gather(self, wait_s: float, since_s: float) -> None:
        """Let more outcomes come together before the next are fetched; no longer than until the last is there. Nobody
        is asked for that while, at the pace of those that came, they would be far from all."""
        if self.done or self._over or wait_s <= 0:
            return
        if (self.size - self.told) * since_s > SURE * wait_s * self.told:
            time.sleep(wait_s)
        else:
            with contextlib.suppress(HubUnreachable):
                self._over = self._hub.job(self.job_id, wait=wait_s)["state"] in TERMINAL

    def _fetch(self) -> None:
        """The next batch of outcomes that the hub has and that are not here yet."""
        rows = self._next_rows()
        self._left_out = False
        if not rows:
            return
        ended = {index: row for index, row in rows.items() if row["state"] in (SUCCEEDED, FAILED)}
        data = {index: base64.b64decode(row["value"]) for index, row in ended.items() if row.get("value") is not None}
        later: set[int] = set()
        if larger := sorted(index for index in ended if index not in data):
            found, left_out = self._hub.results(self.job_id, larger)
            if larger[0] in left_out:
                # The first is waited for; what comes after it may come after it.
                found[larger[0]] = self._hub.result(f"{self.job_id}.{larger[0]}")
            data |= found
            later = set(left_out) - found.keys()
            self._left_out = bool(later)
        for index in rows.keys() - later:
            self._ready[index] = call_outcome(self._hub, {**rows[index], "spec": self._spec}, data.get(index))
        self._adapt(data)

    def _next_rows(self) -> dict[int, Document]:
        after: int | None = self._low - 1
        top = self._low + self._batch if self._ordered else self.size
        limit = min(self._batch, ROWS) if self._ordered else ROWS
        # With their values, unless many of these are here already and wait for one before them.
        ended = self._ordered and len(self._ready) <= self._batch // 8
        while after is not None:
            page = self._hub.tasks(self.job_id, after=after if after >= 0 else None, limit=limit, ended=ended)
            new = {
                row["index"]: row for row in page["tasks"] if row["state"] in TERMINAL and self._is_new(row["index"])
            }
            wanted = [index for index in sorted(new) if index < top][: self._batch]
            after = page.get("next")
            if wanted or self._ordered:
                return {index: new[index] for index in wanted}
        return {}

    def _is_new(self, index: int) -> bool:
        return index >= self._low and index not in self._ahead and index not in self._ready

    def _adapt(self, data: dict[int, bytes]) -> None:
        """Large values come a few at a time, small ones many."""
        if data:
            each = sum(len(one) for one in data.values()) / len(data)
            self._batch = max(1, min(RESULTS_PER_CALL, self._batch * 4, int(BATCH_BYTES / (each + 1))))

    def _take(self) -> list[Outcome]:
        found: list[Outcome] = []
        while self._low in self._ready or self._low in self._ahead:
            self._ahead.discard(self._low)
            if self._low in self._ready:
                found.append(self._ready.pop(self._low))
            self._low += 1
        if not self._ordered:
            found += self._ready.values()
            self._ahead.update(self._ready)
            self._ready.clear()
        self.told += len(found)
        return found

    def _missing(self) -> list[Outcome]:
        """The job is over and a call has no row: it ended before it was ever placed."""
        document = self._hub.job(f"{self.job_id}.{self._low}")
        if document["state"] not in TERMINAL:
            self._over = False  # requeued meanwhile
            return []
        self._ready[self._low] = Outcome(error=failure(self._hub, document))
        return self._take()


class Results(Iterator[Any]):
    """The values of a map's calls, fetched while they are read; `job` is the array behind them, None if it is empty.

    A call's exception is raised in its place. That, a time-out, and leaving the loop early end the map: what has not
    run by then is cancelled, as nobody would read it.
    """

    def __init__(self, job: Job | None, calls: Calls | None, timeout: float | None, keep_errors: bool) -> None:
        self.job = job
        self._values = _values(job, calls, deadline_of(timeout), timeout or 0.0, keep_errors)

    def __repr__(self) -> str:
        return f"<Results of {self.job!r}>"

    def _repr_html_(self) -> str:
        return notebook.plain_html(repr(self)) if self.job is None else self.job._repr_html_()

    def __iter__(self) -> "Results":
        return self

    def __next__(self) -> Any:
        return next(self._values)

    def close(self) -> None:
        """Read no more."""
        self._values.close()


def _values(
    job: Job | None, calls: Calls | None, deadline: float | None, timeout: float, keep_errors: bool
) -> Generator[Any, None, None]:
    if job is None or calls is None:
        return
    try:
        with notebook.counting(job.name or job.id, calls.size) as told:
            for outcome in calls.outcomes(deadline, timeout):
                told(outcome.error is None)
                if outcome.error is not None and not keep_errors:
                    break
                yield outcome.value if outcome.error is None else outcome.error
            else:
                return
        raise outcome.error  # not inside of that block, which writes to what goes through it: some refuse that
    except BaseException as error:
        if not calls.done and not is_away(error):
            with contextlib.suppress(Exception):
                job.cancel()
        raise
