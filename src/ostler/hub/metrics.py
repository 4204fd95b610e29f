"""Prometheus metrics, read from the fleet when they are asked for."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ostler import __version__
from ostler.core.fleet import Fleet
from ostler.domain.records import FeedRecord
from ostler.domain.states import LIVE, TERMINAL
from ostler.hub.documents import worker_status
from ostler.hub.lag import Lag
from ostler.hub.loop import Loop


class Metrics:
    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._finished = dict.fromkeys(TERMINAL, 0)
        self.more: Callable[[], Iterable[Metric]] = tuple
        """What else there is to be told, when it is asked for."""
        self.lag = Lag()
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def observe(self, records: list[FeedRecord]) -> None:
        for record in records:
            state = record.body.get("state")
            if record.kind == "job" and state in self._finished:
                self._finished[str(state)] += 1

    def text(self) -> str:
        return generate_latest(self._registry).decode() + "".join(_gpu_lines(self._loop.fleet))

    def collect(self) -> Iterator[Metric]:
        fleet = self._loop.fleet
        yield from _fleet_metrics(fleet, self._loop.now())
        finished = CounterMetricFamily("ostler_jobs_finished", "Jobs that have ended", labels=["outcome"])
        for state, count in self._finished.items():
            finished.add_metric([state], count)
        yield finished
        yield CounterMetricFamily("ostler_hub_events", "Events stepped by the loop", value=self._loop.events)
        yield CounterMetricFamily("ostler_hub_batches", "Batches of the loop", value=self._loop.batches)
        yield CounterMetricFamily("ostler_ledger_commit_seconds", "Time spent in commits", value=self._loop.commit_s)
        yield from self.lag.collect()
        yield from self.more()
        yield GaugeMetricFamily("ostler_hub_leads", "Whether this hub leads", value=1)
        info = GaugeMetricFamily("ostler_build_info", "The hub's version", labels=["version"])
        info.add_metric([__version__], 1)
        yield info


def _fleet_metrics(fleet: Fleet, now: float) -> Iterator[Metric]:
    jobs = GaugeMetricFamily("ostler_jobs", "Jobs that have not ended", labels=["state"])
    for state in LIVE:
        jobs.add_metric([state], fleet.job_counts[state])
    yield jobs
    workers = GaugeMetricFamily("ostler_workers", "Workers by status", labels=["status"])
    statuses = {"ready": 0, "busy": 0, "offline": 0}
    for worker in fleet.workers.values():
        statuses[worker_status(worker, now)] += 1
    for status, count in statuses.items():
        workers.add_metric([status], count)
    yield workers


def _gpu_lines(fleet: Fleet) -> Iterator[str]:
    """Two for each worker, written by hand: the library takes a sixth of a second for ten thousand workers."""
    yield "# HELP ostler_gpus GPUs of each worker\n# TYPE ostler_gpus gauge\n"
    for worker in fleet.workers.values():
        free, name = worker.room.free_devices(), _escaped(worker.id)
        held = len(worker.offer.devices) - free
        yield (
            f'ostler_gpus{{worker="{name}",state="free"}} {free}.0\n'
            f'ostler_gpus{{worker="{name}",state="held"}} {held}.0\n'
        )


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"')
