"""Which worker: the best of those that may take a task."""

from typing import Final

from ostler.core.fleet import Fleet, Job, Worker
from ostler.core.holding import NO_GPUS, Grant
from ostler.core.index import bits
from ostler.core.machines import State
from ostler.core.placing.score import Score, explained, granted, leftover, loss, preferred
from ostler.domain.resources import Request

FEW_STATES = 4
"""So many distinct worker states are scored one by one; more, all at once."""
STATES_EXAMINED: Final = 64
"""Distinct states of machines without GPUs that are compared by how well a task fits them."""
LITTLE_SLOWER, LITTLE_S = 1.1, 0.5
"""By so much a model may be loaded later for the sake of all else that speaks for a worker."""


def choose(fleet: Fleet, job: Job, among: int) -> tuple[Worker, Grant, Score]:
    """The best worker for one task of this job, among those that the index says may take it."""
    request = job.shape.request
    if not among & (among - 1):
        return only(fleet, job, fleet.workers[fleet.index.worker_at(among.bit_length() - 1)])
    fleet.board.learn()
    worker = _best(fleet, job, _wished(fleet, job, among))
    found = loss(fleet.board.worth, request, worker.room)
    return worker, granted(request, worker.room, found.part), explained(request, worker, found)


def only(fleet: Fleet, job: Job, worker: Worker) -> tuple[Worker, Grant, Score]:
    """There is no other."""
    shape, request = job.shape, job.shape.request
    part = loss(fleet.board.worth, request, worker.room).part if shape.shares_gpu else 0
    grant = granted(request, worker.room, part) if shape.uses_gpu else NO_GPUS
    return worker, grant, Score(preferred(request, worker), alone=True)


def _wished(fleet: Fleet, job: Job, among: int) -> int:
    """Those of the workers that come first, whatever their room."""
    request = job.shape.request
    if request.prefer:
        among = _most_preferred(fleet, request, among)
    if request.prefers_cuda:
        among = _with_cuda(fleet, among) or among
    if seconds := fleet.load_s.get(job.id):
        among = _quickest(fleet, seconds, among)
    if job.snapshot:
        among = _with_snapshot(fleet, job.snapshot, among) or among
    if not request.uses_gpu:
        among = among & fleet.index.machines.without_gpu or among
    return among


def _best(fleet: Fleet, job: Job, among: int) -> Worker:
    """Whose room loses least; of those the one that it fits best, or the first."""
    index, request = fleet.index, job.shape.request
    index.machines.enter_states(among)
    has_gpus = among ^ (among & index.machines.without_gpu)
    states = _states(fleet, among, FEW_STATES + 1 if has_gpus else STATES_EXAMINED)
    if has_gpus and len(states) > FEW_STATES:
        return fleet.workers[fleet.board.best(index, fleet.workers, job.shape.profile, among)]
    ranked = []
    for state in states:
        first = index.machines.roster.first(among & state.workers)
        room = fleet.workers[first].room
        lost = loss(fleet.board.worth, request, room).steps if has_gpus and len(states) > 1 else 0
        ranked.append((lost, leftover(request, room), first))
    return fleet.workers[min(ranked)[2]]


def _states(fleet: Fleet, among: int, at_most: int) -> list[State]:
    found: list[State] = []
    while among and len(found) < at_most:
        found.append(fleet.index.machines.state_of(among.bit_length() - 1))
        among ^= among & found[-1].workers
    return found


def _with_cuda(fleet: Fleet, among: int) -> int:
    found = 0
    for number in bits(among):
        if fleet.workers[fleet.index.worker_at(number)].offer.has_cuda:
            found |= 1 << number
    return found


def _quickest(fleet: Fleet, seconds: dict[str, float], among: int) -> int:
    """Those of the workers on which a model is ready soonest; where it never was, it takes as long as on average."""
    usual_s = sum(seconds.values()) / len(seconds)
    found = {number: seconds.get(fleet.index.worker_at(number), usual_s) for number in bits(among)}
    enough_s = LITTLE_SLOWER * min(found.values()) + LITTLE_S
    return sum(1 << number for number, takes_s in found.items() if takes_s <= enough_s)


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
