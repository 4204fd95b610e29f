"""Which worker: the best of those that may take a task."""

from ostler.core.fleet import Fleet, Job, Worker
from ostler.core.index import bits
from ostler.core.room import pick_devices
from ostler.core.score import Score, score
from ostler.domain.resources import Grant, Request

STATES_EXAMINED = 64
"""Distinct worker states that are scored for one decision."""


def choose(fleet: Fleet, job: Job, among: int) -> tuple[Worker, Grant, Score]:
    """The best worker for one task of this job, among those that the index says may take it."""
    request, index = job.shape.request, fleet.index
    left = among
    if request.prefer:
        left = _most_preferred(fleet, request, left)
    if job.snapshot:
        left = _with_snapshot(fleet, job.snapshot, left) or left
    if not request.uses_gpu:
        left = left & index.without_gpu or left
    best: tuple[float, str] | None = None
    found: tuple[Worker, Grant, Score] | None = None
    examined = 0
    while left and examined < STATES_EXAMINED:
        state = index.state_of(index.worker_at(left.bit_length() - 1))
        alike = left & state.workers
        left ^= alike
        examined += 1
        name = next(name for name in state.ids if alike & index.bit_of(name))
        worker = fleet.workers[name]
        grant = pick_devices(request, worker.room)
        assert grant is not None
        result = score(request, worker, grant)
        if best is None or (result.total, name) < best:
            best, found = (result.total, name), (worker, grant, result)
    assert found is not None
    return found


def _with_snapshot(fleet: Fleet, snapshot: str, among: int) -> int:
    """Those of the workers where the job's files are already."""
    found = 0
    for number in bits(among):
        if snapshot in fleet.workers[fleet.index.worker_at(number)].capabilities.snapshots:
            found |= 1 << number
    return found


def _most_preferred(fleet: Fleet, request: Request, among: int) -> int:
    """Those of the workers on which most of the preferred labels hold."""
    by_count: dict[int, int] = {}
    for number in bits(among):
        worker = fleet.workers[fleet.index.worker_at(number)]
        held = sum(constraint.holds(worker.offer.labels) for constraint in request.prefer)
        by_count[held] = by_count.get(held, 0) | 1 << number
    return by_count[max(by_count)]
