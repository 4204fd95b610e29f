"""The training fleet at a glance: how far the manifest is, what failed, and how its sweeps stand."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from ostler.domain.job import Training
from ostler.domain.states import FAILED, STATUS
from ostler.hub.documents import Document, timestamp
from ostler.hub.feed import Feed
from ostler.hub.loop import Loop
from ostler.ledger.base import JobView, Ledger

FAILED_TOLD = 100
SMALLER_IS_BETTER = ("loss", "error", "err", "rmse", "mse", "mae", "perplexity", "nll", "time")


class _Spec(msgspec.Struct):
    training: Training | None = None


_spec_of = msgspec.json.Decoder(_Spec).decode


class Overview:
    """One look at a time, and none while nothing has happened: of a long manifest there is much to read, and whoever
    asks for it every second must not keep others from the ledger."""

    def __init__(self, loop: Loop, feed: Feed) -> None:
        self._loop = loop
        self._feed = feed
        self._looking = asyncio.Lock()
        self._seen = -1
        """The feed's newest line when it was last looked at."""
        self._progress: Document = {}
        self._sweeps: list[Document] = []

    async def manifest(self) -> Document | None:
        record = await self._loop.read(lambda ledger: ledger.manifest())
        if record is None:
            return None
        await self._look()
        return {"file": record.file, "applied_at": timestamp(record.applied_at), "by": record.by, **self._progress}

    async def sweeps(self) -> list[Document]:
        await self._look()
        return self._sweeps

    async def _look(self) -> None:
        async with self._looking:
            seen = self._feed.last_seq
            if seen != self._seen:
                self._progress, self._sweeps = await self._loop.read(_look_at_all)
                self._seen = seen


def _look_at_all(ledger: Ledger) -> tuple[Document, list[Document]]:
    views = ledger.manifest_jobs()
    return _progress_of(views), _sweeps_of(views)


def _progress_of(views: list[JobView]) -> Document:
    failed = sorted((view for view in views if view.job.state == FAILED), key=lambda view: -(view.job.finished_at or 0))
    return {
        "counts": _counts(views),
        "failed": [
            {
                "id": view.job.id,
                "name": view.job.name,
                "reason": view.job.reason,
                "worker": view.task.worker if view.task else None,
                "finished_at": timestamp(view.job.finished_at),
            }
            for view in failed[:FAILED_TOLD]
        ],
    }


def _sweeps_of(views: list[JobView]) -> list[Document]:
    by_name: dict[str, list[JobView]] = {}
    for view in views:
        if view.job.sweep:
            by_name.setdefault(view.job.sweep, []).append(view)
    return [sweep_document(name, found, full=False) for name, found in by_name.items()]


def sweep_document(name: str, views: list[JobView], *, full: bool, metric: str = "") -> Document:
    """A sweep as one thing; with `full`, and each of its points."""
    trainings = {view.job.id: _spec_of(view.job.spec).training or Training() for view in views}
    first = trainings[views[0].job.id]
    metric = metric or first.metric or _only_metric(views)
    goal = first.goal if first.goal and metric == first.metric else _usual_goal(metric)
    points = [_point(view, trainings[view.job.id], metric) for view in views]
    known = [point for point in points if point["value"] is not None and point["status"] == "completed"]
    best = (min if goal == "min" else max)(known, key=lambda point: point["value"], default=None)
    document = {
        "name": name,
        "model": first.model,
        "mode": first.mode,
        "metric": metric,
        "goal": goal,
        "counts": _counts(views),
        "total": len(views),
        "best": best and {key: best[key] for key in ("job_id", "name", "value", "hyper")},
    }
    return {**document, "jobs": points} if full else document


def _point(view: JobView, training: Training, metric: str) -> Document:
    metrics = view.task.metrics if view.task else {}
    return {
        "job_id": view.job.id,
        "name": view.job.name,
        "hyper": training.hyper,
        "status": STATUS[view.job.state],
        "reason": view.job.reason,
        "worker": (view.task.worker or None) if view.task else None,
        "metrics": metrics,
        "value": metrics.get(metric),
    }


def _counts(views: Iterable[JobView]) -> dict[str, int]:
    return dict(Counter(STATUS[view.job.state] for view in views))


def _only_metric(views: list[JobView]) -> str:
    """The metric that its runs told of, where the manifest names none: the first name, as they wrote it."""
    told: Any = next((view.task.metrics for view in views if view.task and view.task.metrics), {})
    return next(iter(told), "")


def _usual_goal(metric: str) -> str:
    return "min" if any(word in metric.lower() for word in SMALLER_IS_BETTER) else "max"
