"""What the ledger takes of every job that is alone: one commit of its submit, one of its end.

The rows are those that the core asks for, and they come when a job's do: the first after the idle time that is before
every job alone, the second when its process would have run. A disk, and all that is on the way to it, takes longer for
whoever asks now and then than for whoever asks all the time.
"""

import itertools
import random
import statistics
import time
from pathlib import Path

from benchmarks.process_fleet import IDLE_S, TRUE

from ostler.core.effects import AssignTask, Effect
from ostler.core.events import Event, JobsSubmitted, TaskEnded, WorkerBeat, WorkerRegistered
from ostler.core.fleet import Fleet
from ostler.core.persist import take_changes
from ostler.core.placing.place import settle
from ostler.core.step import step
from ostler.domain.job import JobSpec
from ostler.domain.records import Changes, ReceiptRecord
from ostler.domain.worker import Capabilities, Slots
from ostler.hub.new_job import new_job
from ostler.ledger.sqlite import SqliteLedger

RUNS_S = 0.003
WORKER = "bench"


def two_commits_ms(folder: Path, count: int = 40) -> float:
    """Both together, each by its median."""
    ledger = SqliteLedger(folder / "commits.db")
    numbers = itertools.count(1)
    fleet = Fleet(lambda: f"a{next(numbers)}")
    _turn(fleet, WorkerRegistered(worker_id=WORKER, session=1, capabilities=Capabilities(cpu_count=2, memory_gb=8)))
    _turn(fleet, WorkerBeat(worker_id=WORKER, session=1, slots=Slots(batch_total=2)))
    of_submits, of_ends = [], []
    try:
        for number in range(count):
            changes, effects = _turn(fleet, _submitted(f"job-{number}"))
            attempt = next(effect.attempt for effect in effects if isinstance(effect, AssignTask))
            of_submits.append(_took_s(ledger, changes, random.uniform(*IDLE_S)))
            ended = TaskEnded(
                worker_id=WORKER,
                session=1,
                task_id=f"job-{number}",
                attempt=attempt,
                state="succeeded",
                exit_code=0,
                run_s=RUNS_S,
            )
            of_ends.append(_took_s(ledger, _turn(fleet, ended)[0], RUNS_S))
    finally:
        ledger.close()
    return (statistics.median(of_submits) + statistics.median(of_ends)) * 1000


def _submitted(name: str) -> Event:
    spec = JobSpec(id=name, user_id="admin", command=[TRUE])
    receipt = ReceiptRecord(key=f"key-{name}", digest="0" * 64, ids=[name], at=time.time())
    return JobsSubmitted(ref=1, jobs=[new_job(spec)], receipt=receipt)


def _turn(fleet: Fleet, event: Event) -> tuple[Changes, list[Effect]]:
    now = time.monotonic()
    effects = step(fleet, event, now) + settle(fleet, now)
    return take_changes(fleet, now), effects


def _took_s(ledger: SqliteLedger, changes: Changes, after_s: float) -> float:
    time.sleep(after_s)
    begun = time.perf_counter()
    ledger.commit(changes)
    return time.perf_counter() - begun
