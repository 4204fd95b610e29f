"""What has ended goes after a while, in the background: jobs, their logs, their artifacts, old keys.

What lives stays, whatever the settings say; so does what something that lives depends on. The work is done in small
portions with long pauses, as events of the loop like any other, so that no commit is held up by it.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from math import inf
from typing import Any

from prometheus_client.core import CounterMetricFamily, Metric

from ostler.core.effects import Pruned
from ostler.core.events import PruneRequested
from ostler.domain.errors import LedgerError, StoreAway
from ostler.domain.retention import Retention
from ostler.hub.api.artifacts import ArtifactsApi
from ostler.hub.clock import Steadiness
from ostler.hub.documents import timestamp
from ostler.hub.logs import Logs
from ostler.hub.loop import Loop
from ostler.hub.old import OldFeed, OldJobs, OldOutputs, OldReceipts, Page
from ostler.store import old_logs
from ostler.store.old_logs import Amounts, LogFile
from ostler.store.streaming import STORE, in_thread

FIRST_S = 60.0
EVERY_S = 600.0
REST_S = 0.05
RESTS = 4
"""The pause after a portion, in times that it took."""
LOGS_AT_ONCE = 500
MOVED_AFTER_S = 600.0
"""A log that has not grown for so long is moved to the bucket, if its attempt has ended."""
YOUNGEST_S = 3600.0
"""A job that ended so lately stays, however many there are: somebody may be about to ask what became of it."""
NOBODYS_S = 3600.0
"""A log of which the ledger knows nothing goes after this long: its job is gone."""
WHAT = ("jobs", "logs", "artifacts", "log_bytes", "artifact_bytes", "feed_lines", "keys", "audit_rows")

_log = logging.getLogger("ostler.hub")


class Keeper:
    def __init__(
        self, loop: Loop, chosen: Retention, logs: Logs, artifacts: ArtifactsApi, wall: Callable[[], float] = time.time
    ) -> None:
        self.chosen = chosen
        self._loop = loop
        self._logs = logs
        self._artifacts = artifacts
        self._wall = wall
        self._steadiness = Steadiness(wall)
        self._feed = OldFeed(before=0.0)
        self.removed: Counter[str] = Counter(dict.fromkeys(WHAT, 0))
        """Since the hub started."""
        self.swept_at: float | None = None
        self._away: StoreAway | None = None
        """The bucket was, in this sweep: logs that are on the disk go all the same, or it would fill up."""
        self.tidy: Callable[[], None] = lambda: None
        """Have the store remove what was begun and left, and what it could not remove when it was away. Blocks."""

    async def run(self) -> None:
        """For as long as the hub runs."""
        await asyncio.sleep(FIRST_S)
        while True:
            try:
                if self._steadiness.is_steady():
                    await self.sweep()
                else:
                    _log.warning("the clock was set; for a day nothing is removed because it is old")
            except (LedgerError, StoreAway, OSError) as error:
                _log.warning("what is old was not removed: %s", error)
            await asyncio.sleep(EVERY_S)

    async def sweep(self) -> None:
        """Once through everything."""
        before = self.removed.copy()
        await self._sweep_artifacts()
        await self._sweep_jobs()
        await self._sweep_rows()
        await self._sweep_logs()
        await in_thread(STORE, self.tidy)
        self.swept_at = self._wall()
        gone = self.removed - before
        if gone:
            _log.info("removed what is old: %s", ", ".join(f"{count} {what}" for what, count in sorted(gone.items())))

    def document(self) -> dict[str, Any]:
        limits = {key: value for key in Retention.__struct_fields__ if (value := getattr(self.chosen, key)) < inf}
        return {"limits": limits, "removed": dict(self.removed), "swept_at": timestamp(self.swept_at)}

    def collect(self) -> Iterator[Metric]:
        removed = CounterMetricFamily("ostler_pruned", "What was removed because it was old", labels=["what"])
        for what, count in self.removed.items():
            removed.add_metric([what], count)
        yield removed

    # Rows

    async def _sweep_jobs(self) -> None:
        await self._through(OldJobs(before=self._wall() - self.chosen.jobs, wall=self._wall()))
        ended = await self._loop.look(lambda fleet, _: sum(fleet.tally.values()))
        if ended > self.chosen.most_jobs:
            before = self._wall() - YOUNGEST_S
            await self._through(OldJobs(before=before, wall=self._wall(), most=ended - self.chosen.most_jobs))

    async def _sweep_rows(self) -> None:
        """Keys, and lines about workers; a line about a job goes with its job, so those are passed once only."""
        await self._through(OldReceipts(before=self._wall() - self.chosen.keys))
        self._feed.before, self._feed.done = self._wall() - self.chosen.jobs, False
        await self._through(self._feed)
        await self._sweep_audit()

    async def _sweep_audit(self) -> None:
        before = self._wall() - self.chosen.audit
        while (old := await self._loop.read(lambda ledger: self._loop.audit.pruning(ledger, before))) is not None:
            begun = time.monotonic()
            await self._loop.commit(old.changes)
            self.removed["audit_rows"] += old.rows
            await _rest(begun)

    async def _through(self, page: Page) -> list[str]:
        """From page to page. The artifacts that were given up."""
        outputs: list[str] = []
        while not page.done:
            begun = time.monotonic()
            outputs += await self._portion(page)
            await _rest(begun)
        return outputs

    async def _portion(self, page: Page) -> list[str]:
        event = PruneRequested(ref=0, page=page)

        def numbered(ref: int) -> PruneRequested:
            event.ref = ref
            return event

        reply = await self._loop.ask_any(numbered)
        assert isinstance(reply, Pruned)
        self.removed["jobs"] += reply.jobs
        self.removed["feed_lines"] += len(event.feed)
        self.removed["keys"] += len(event.receipts)
        return reply.outputs

    # Artifacts

    async def _sweep_artifacts(self) -> None:
        if min(self.chosen.artifacts, self.chosen.most_artifacts) == inf:
            return
        self._dropped(await self._artifacts.drop_nobodys())
        if self.chosen.artifacts < inf:
            await self._drop(await self._through(OldOutputs(before=self._wall() - self.chosen.artifacts)))
        if self.chosen.most_artifacts < inf:
            excess = await self._artifacts.total_bytes() - self.chosen.most_artifacts
            if excess > 0:
                await self._drop(await self._through(OldOutputs(before=inf, most_bytes=excess)))

    async def _drop(self, ids: Collection[str]) -> None:
        self._dropped(await self._artifacts.drop(ids))

    def _dropped(self, gone: dict[str, int]) -> None:
        self.removed["artifacts"] += len(gone)
        self.removed["artifact_bytes"] += sum(gone.values())

    # Logs

    async def _sweep_logs(self) -> None:
        amounts = Amounts()
        places = await asyncio.to_thread(old_logs.folders, self._logs.store.folder)
        for place in places:
            amounts.add(await asyncio.to_thread(old_logs.files, place))
        by_size = amounts.too_old(self.chosen.most_logs)
        self._away = None
        for place in places:
            begun = time.monotonic()
            limit = max(by_size, self._wall() - min(self.chosen.logs, max(self.chosen.jobs, NOBODYS_S)))
            found = [file for file in await asyncio.to_thread(old_logs.files, place) if file.changed_at < limit]
            for first in range(0, len(found), LOGS_AT_ONCE):
                await self._remove_logs(found[first : first + LOGS_AT_ONCE], by_size)
            await self._move_logs(await asyncio.to_thread(old_logs.files, place))
            await _rest(begun)
        if self._away is not None:
            raise self._away

    async def _remove_logs(self, found: list[LogFile], by_size: float) -> None:
        names = [file.attempt for file in found]
        ends = await self._loop.read(lambda ledger: ledger.ends_of(names))
        held = await self._loop.look(lambda fleet, _: {name for name in names if name in fleet.held})
        old = [file for file in found if file.attempt not in held and self._may_go(file, ends, by_size)]
        for file in old:
            if file.moved and self._away is not None:
                continue
            try:
                await asyncio.to_thread(self._logs.store.forget, file.attempt)
            except StoreAway as error:
                self._away = error
                continue
            self.removed["log_bytes"] += file.size
            self.removed["logs"] += 1

    async def _move_logs(self, found: list[LogFile]) -> None:
        """To the bucket, where there is one: those of attempts that have ended."""
        before = self._wall() - MOVED_AFTER_S
        names = [file.attempt for file in found if not file.moved and file.changed_at < before]
        if self._logs.store.client is None or not names or self._away is not None:
            return
        ends = await self._loop.read(lambda ledger: ledger.ends_of(names))
        held = await self._loop.look(lambda fleet, _: {name for name in names if name in fleet.held})
        for name in names:
            if ends.get(name) is not None and name not in held:
                try:
                    await self._logs.move(name)
                except StoreAway as error:
                    self._away = error
                    return

    def _may_go(self, file: LogFile, ends: dict[str, float | None], by_size: float) -> bool:
        if file.attempt not in ends:
            return file.changed_at < self._wall() - NOBODYS_S
        ended_at = ends[file.attempt]
        if ended_at is None:
            return False
        return ended_at < self._wall() - self.chosen.logs or file.changed_at < by_size


async def _rest(begun: float) -> None:
    await asyncio.sleep(max(REST_S, RESTS * (time.monotonic() - begun)))
