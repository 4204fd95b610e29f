"""Prometheus metrics, read from the fleet when they are asked for."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ostler import __version__
from ostler.core.fleet import Fleet
from ostler.domain.records import AttemptRecord, FeedRecord
from ostler.domain.states import ASSIGNED, LIVE, TERMINAL
from ostler.hub.documents import worker_status
from ostler.hub.gateway.counts import Histogram
from ostler.hub.lag import Lag
from ostler.hub.loop import Loop

SPANS_S = (0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 12 * 3600.0, 86_400.0, 3 * 86_400.0)
"""For what takes a moment as well as days."""


class Metrics:
    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._finished = dict.fromkeys(TERMINAL, 0)
        self._waits = Histogram(
            "ostler_task_wait_seconds",
            "From a job's entry into the queue to a task's placement; not of those sent ahead",
            "tier",
            SPANS_S,
        )
        self._runs = Histogram("ostler_attempt_run_seconds", "How long ended attempts ran", "outcome", SPANS_S)
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

    def saw(self, attempt: AttemptRecord, *, was_sent: bool = False) -> None:
        """One that was begun, that has changed, or that has ended: only with its end is it told how long it ran.
        `was_sent`: ahead, and nothing was written of it by itself before."""
        if attempt.state == ASSIGNED and attempt.held and not was_sent:
            held = self._loop.fleet.held.get(attempt.attempt)
            if (
                held is not None and held.after is None and held.task is not None
            ):  # not sent ahead, with room of its own
                job = held.task.job
                self._waits.observe(job.terms.tier, max(0.0, self._loop.now() - job.queued))
        elif attempt.run_s and not attempt.held:
            self._runs.observe(attempt.state, attempt.run_s)

    def text(self) -> str:
        return generate_latest(self._registry).decode() + "".join(_gpu_lines(self._loop.fleet))

    def collect(self) -> Iterator[Metric]:
        fleet = self._loop.fleet
        yield from _fleet_metrics(fleet, self._loop.now())
        finished = CounterMetricFamily("ostler_jobs_finished", "Jobs that have ended", labels=["outcome"])
        for state, count in self._finished.items():
            finished.add_metric([state], count)
        yield finished
        yield self._waits.collect()
        yield self._runs.collect()
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
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
