"""What an attempt that is over teaches of its kind, and what jobs that leave their needs to that ask for."""

from typing import Final

import msgspec

from ostler.core.events import TaskEnded
from ostler.core.fleet import Attempt, Fleet, Job, Worker
from ostler.core.learning.kind import Kind
from ostler.core.learning.run import Run
from ostler.domain.job import Terms
from ostler.domain.quantities import show_mib
from ostler.domain.resources import Request
from ostler.domain.worker import ActiveTask

SUCCESS: tuple[str, ...] = ("succeeded", "completed")
STOPPED_BY_BUDGET: str = "max_runtime"
NEWS_PART: Final = 1.1
LARGEST_MIB: Final = 2**40
WITHIN_REACH: Final = 0.9
"""Of a device or a machine, what others leave: somebody else always has a little of it."""


def measured(attempt: Attempt, event: TaskEnded) -> None:
    """What its worker says that it took. A peak that a heartbeat brought stays where the end says less."""
    attempt.run_s = event.run_s
    attempt.peak_memory_mib = max(attempt.peak_memory_mib, event.peak_memory_mib)
    attempt.peak_vram_mib = max(attempt.peak_vram_mib, event.peak_vram_mib)


def seen(fleet: Fleet, attempt: Attempt, line: ActiveTask) -> None:
    """The peaks of one that runs: written down when they have grown by a part worth knowing, not with every beat."""
    memory, vram = attempt.peak_memory_mib, attempt.peak_vram_mib
    if line.peak_memory_mib > NEWS_PART * memory or line.peak_vram_mib > NEWS_PART * vram:
        attempt.peak_memory_mib = max(memory, line.peak_memory_mib)
        attempt.peak_vram_mib = max(vram, line.peak_vram_mib)
        fleet.touch_attempt(attempt)


def learn(fleet: Fleet, attempt: Attempt, lacked: str, now: float) -> None:
    """Once its end was seen."""
    task = attempt.task
    if task is None or attempt.started_at is None or task.job.terms.model:
        return
    job, worker = task.job, fleet.workers[attempt.worker_id]
    run = Run(
        ran_s=attempt.run_s or max(0.0, fleet.wall(now) - attempt.started_at),
        outcome=_outcome(attempt),
        endless=job.terms.service,
        limit_s=job.terms.max_runtime_s if job.terms.limited else 0.0,
        memory_mib=attempt.peak_memory_mib,
        vram_mib=attempt.peak_vram_mib,
        memory_had_mib=worker.offer.memory_mib,
        vram_had_mib=vram_of(attempt, worker),
        lacked=lacked,
    )
    fleet.kinds.learn(job.kind, job.user, run)
    _refit(fleet, job.kind)


def _outcome(attempt: Attempt) -> str:
    """An end that was not its own says only that it would have gone on."""
    if attempt.outcome in SUCCESS:
        return "succeeded"
    by_itself = attempt.outcome == "failed" and not attempt.stop_reason and attempt.reason != STOPPED_BY_BUDGET
    return "failed" if by_itself else "cut"


def vram_of(attempt: Attempt, worker: Worker) -> int:
    """What its devices have, or its share of one."""
    grant = attempt.held.grant
    if grant.share_mib or not grant.devices:
        return grant.share_mib
    return sum(one.vram_mib for one in worker.offer.devices if one.index in grant.devices)


# Needs that follow from it


def fitted(fleet: Fleet, terms: Terms, kind: int, request: Request) -> Request:
    """The request with what its kind has taken, where the job leaves that open. One run that took all there was must
    not keep its like from ever running: where nobody has as much, most of the largest will do."""
    auto = terms.auto
    if auto is None:
        return request
    vram_mib, memory_mib = _needs(fleet, kind)
    if auto.vram:
        whole = auto.gpus or int(not vram_mib and not auto.vram_mib)
        if vram_mib > (most := _most_vram(fleet, request, auto.gpus or 1)) > 0:
            whole, vram_mib = auto.gpus or 1, int(WITHIN_REACH * most)
        request = msgspec.structs.replace(request, gpu_count=whole, vram_mib=vram_mib or auto.vram_mib)
    if auto.memory:
        memory_mib = min(memory_mib, _most_memory(fleet, kind))
        request = msgspec.structs.replace(request, memory_mib=memory_mib or auto.memory_mib)
    return request


def _most_vram(fleet: Fleet, request: Request, gpus: int) -> int:
    """What so many GPUs of one machine that it accepts have together, where that is most; 0: there is no such."""
    kinds = (machine.kind for machine in fleet.index.machines.counts if machine.gpus >= gpus)
    kinds = (one for one in kinds if request.backend in ("", one.backend))
    accepted = (one for one in kinds if request.accepts_type(one.gpu_type, one.gpu_names))
    return max((gpus * one.vram_mib for one in accepted), default=0)


def _most_memory(fleet: Fleet, kind: int) -> int:
    """Of a kind that has only ever run out of it; what others ask for is no more than what a run had."""
    known = fleet.kinds.of(kind)
    if known is None or known.memory_had_mib or not fleet.workers:
        return LARGEST_MIB
    return int(WITHIN_REACH * max(worker.offer.memory_mib for worker in fleet.workers.values()))


def _needs(fleet: Fleet, kind: int) -> tuple[int, int]:
    """VRAM and memory in MiB, as far as they are known."""
    known = fleet.kinds.of(kind)
    return (known.needs_vram_mib(), known.needs_memory_mib()) if known is not None else (0, 0)


def outgrown(fleet: Fleet, job: Job) -> int:
    """The VRAM that was too little for it; 0: none was."""
    return fleet.followers.outgrown_mib.get(job.id, 0)


def grown(request: Request, outgrown_mib: int) -> Request:
    """Whole devices with more memory than that."""
    if not outgrown_mib:
        return request
    count, vram_mib = max(1, request.gpu_count), max(request.vram_mib, outgrown_mib + 1)
    return msgspec.structs.replace(request, gpu_count=count, vram_mib=vram_mib, gpu_milli=0)


def _refit(fleet: Fleet, kind: int) -> None:
    """Let the jobs that follow this kind ask for what it needs now: as many as one event may cost, the rest later."""
    if fleet.followers.has(kind):
        for job in fleet.followers.to_refit(kind, _needs(fleet, kind)):
            refit(fleet, job)


def refit(fleet: Fleet, job: Job) -> None:
    request = grown(fitted(fleet, job.terms, job.kind, job.shape.request), outgrown(fleet, job))
    if request != job.shape.request:
        fleet.change_shape(job, request)


def told(fleet: Fleet, job: Job) -> str:
    """Where its needs come from, in words; empty: from its spec."""
    auto, known = job.terms.auto, fleet.kinds.of(job.kind)
    parts = []
    if auto is not None and auto.vram:
        parts.append(_told("VRAM", job.shape.request.vram_mib, known, "a whole GPU"))
    if auto is not None and auto.memory:
        parts.append(_told("memory", job.shape.request.memory_mib, known, "none"))
    if too_little := outgrown(fleet, job):
        parts.append(f"more VRAM than {show_mib(too_little)}, of which it ran out")
    return "; ".join(parts)


def _told(what: str, mib: int, known: Kind | None, otherwise: str) -> str:
    taken = 0 if known is None else known.needs_vram_mib() if what == "VRAM" else known.needs_memory_mib()
    if known is None or not taken:
        return f"{what} auto: {show_mib(mib) if mib else otherwise}, as nothing is known of its kind"
    asked = show_mib(min(taken, mib or taken))
    return f"{what} auto: {asked} learnt from {known.runs} run{'' if known.runs == 1 else 's'}"
