"""Effects become visible here, after the commit and never before. A worker may have a hint of what is about to come."""

from collections import OrderedDict

from ostler.core.effects import AskYield, AssignTask, DropCheckpoint, Effect, HintSnapshot, KeepArtifact, ToWorker
from ostler.domain.records import Changes
from ostler.hub.feed import Feed
from ostler.hub.gateway.gateway import Gateway
from ostler.hub.logs import Logs
from ostler.hub.loop import Loop
from ostler.hub.metrics import Metrics
from ostler.hub.notices import Notices
from ostler.hub.sessions import Sessions
from ostler.hub.traces import Traces
from ostler.store.artifacts import ArtifactStore
from ostler.store.blobs import BlobStore

SPECS_KEPT = 20_000
SPEC_BYTES_KEPT = 64 * 1024 * 1024


class SpecCache:
    """Specs of recent jobs, so that a job that is placed at once is not read back from the ledger."""

    def __init__(self) -> None:
        self._specs: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0

    def add(self, job_id: str, spec: bytes) -> None:
        self._bytes += len(spec) - len(self._specs.get(job_id, b""))
        self._specs[job_id] = spec
        while len(self._specs) > SPECS_KEPT or self._bytes > SPEC_BYTES_KEPT:
            self._bytes -= len(self._specs.popitem(last=False)[1])

    def get(self, job_id: str) -> bytes | None:
        return self._specs.get(job_id)


class Performer:
    def __init__(self) -> None:
        self._cache = SpecCache()
        self.gateway: Gateway | None = None
        self.notices: Notices | None = None
        self.traces: Traces | None = None

    def wire(
        self,
        loop: Loop,
        sessions: Sessions,
        feed: Feed,
        metrics: Metrics,
        logs: Logs,
        artifacts: ArtifactStore,
        checkpoints: BlobStore,
    ) -> None:
        self._artifacts = artifacts
        self._checkpoints = checkpoints
        self._logs = logs
        self._loop = loop
        loop.hint = self.hint
        self._sessions = sessions
        self._feed = feed
        self._metrics = metrics

    async def __call__(self, changes: Changes, effects: list[Effect]) -> None:
        for job in changes.new_jobs:
            self._cache.add(job.id, job.spec)
        for changed in changes.changed_terms:
            self._cache.add(changed.id, changed.spec)
        specs = await self._specs(effects)
        for effect in effects:
            if isinstance(effect, KeepArtifact):
                self._artifacts.link(effect.record)
            elif isinstance(effect, DropCheckpoint):
                self._checkpoints.remove(effect.blob)
            elif isinstance(effect, AskYield) and self.gateway is not None:
                self.gateway.asked_to_yield(effect)
        self._sessions.perform((effect for effect in effects if isinstance(effect, ToWorker)), specs)
        if self.gateway is not None:
            self.gateway.saw(changes)
        if self.notices is not None:
            self.notices.saw(changes)
        sent = frozenset(changes.unwritten)
        for attempt in changes.attempts:
            self._metrics.saw(attempt, was_sent=attempt.attempt in sent)
            if not attempt.held:
                self._logs.ended(attempt.attempt)
        self._metrics.observe(changes.feed)
        if self.traces is not None:
            self.traces.saw(changes.feed)
        self._feed.watched.saw(changes)
        self._feed.publish(changes.feed)

    def hint(self, changes: Changes, effects: list[Effect]) -> None:
        """While an assignment is written down, whoever is to get it may make ready: that takes as long. Where there are
        several, there is enough to do, and a hint would only be more of it."""
        assigned = [effect for effect in effects if isinstance(effect, AssignTask)]
        if len(assigned) == 1:
            name = assigned[0].job_id
            spec = next((job.spec for job in changes.new_jobs if job.id == name), None) or self._cache.get(name)
            if spec is not None:
                self._sessions.hint(assigned[0], spec)

    async def _specs(self, effects: list[Effect]) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        missing: set[str] = set()
        for effect in effects:
            if isinstance(effect, AssignTask | HintSnapshot):
                spec = self._cache.get(effect.job_id)
                if spec is None:
                    missing.add(effect.job_id)
                else:
                    found[effect.job_id] = spec
        if missing:
            read = await self._loop.read(lambda ledger: ledger.specs(missing))
            for job_id, spec in read.items():
                self._cache.add(job_id, spec)
            found |= read
        return found
