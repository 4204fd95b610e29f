"""SIGSTOP: a process that is there, holds its sockets and files, and does nothing."""

import signal
from collections.abc import Iterator

import psutil
from tests.process_fleet import processes_with

from chaos.fleet import nap
from chaos.judge import Allowed
from chaos.load import Terms
from chaos.trial import FleetUnderLoad, Ground, Trial, fleet_under_load

WORKERS = ("ash", "birch")
ROUNDS = 5
WORKS_S = (0.5, 1.5)
STRADDLING = Terms(
    weights={"short": 6.0, "array": 1.0, "call": 2.0, "long": 1.5, "leaves": 1.0, "alone": 1.5, "patient": 1.0},
    per_s=6.0,
    most_live=30,
    long_s=(2.0, 12.0),
)
"""Half of them outlive the silence after which a worker is given up, and some the longest fault."""


def hub(ground: Ground, trial: Trial) -> None:
    """The hub stands still, for less and for longer than it would give a worker. It reads what waits for it before it
    declares anybody lost: nothing is run again but what its own machine had to stop."""
    with fleet_under_load(ground, trial, WORKERS, terms=STRADDLING, allowed=Allowed(stopped_alone=True)) as here:
        for seconds in _lengths(ground, 0.5, 8.0):
            here.fleet.signal("hub", signal.SIGSTOP)
            trial.count("SIGSTOP of the hub")
            nap(seconds)
            here.fleet.signal("hub", signal.SIGCONT)


def worker(ground: Ground, trial: Trial) -> None:
    """A worker stands still while its tasks go on: given up after a while, and its tasks run elsewhere; whatever must
    not run twice at once is stopped by its supervisor first."""
    with fleet_under_load(ground, trial, WORKERS, terms=STRADDLING, allowed=Allowed(runs_again=True)) as here:
        for number, seconds in enumerate(_lengths(ground, 1.0, 14.0)):
            name = WORKERS[number % len(WORKERS)]
            here.fleet.signal(name, signal.SIGSTOP)
            trial.count("SIGSTOP of a worker")
            nap(seconds)
            here.fleet.signal(name, signal.SIGCONT)


def supervisor(ground: Ground, trial: Trial) -> None:
    """A supervisor stands still: its tasks go on, nothing begins or ends there, and nothing is lost or run again."""
    with fleet_under_load(ground, trial, WORKERS, terms=STRADDLING) as here:
        for number, seconds in enumerate(_lengths(ground, 0.5, 5.0)):
            for process in here.fleet.supervisors(WORKERS[number % len(WORKERS)]):
                process.suspend()
                trial.count("SIGSTOP of a supervisor")
                nap(seconds)
                process.resume()


def machine(ground: Ground, trial: Trial) -> None:
    """A whole machine sleeps: worker, supervisor and tasks. What it held may be run elsewhere; when it wakes, nothing
    of what was given to another counts."""
    with fleet_under_load(ground, trial, WORKERS, terms=STRADDLING, allowed=Allowed(runs_again=True)) as here:
        for number, seconds in enumerate(_lengths(ground, 1.0, 5.5)):
            asleep = _tree(here, WORKERS[number % len(WORKERS)])
            for process in asleep:
                _tell(process, signal.SIGSTOP)
            trial.count("SIGSTOP of a worker, its supervisor and its tasks")
            nap(seconds)
            for process in reversed(asleep):
                _tell(process, signal.SIGCONT)


def _lengths(ground: Ground, shortest: float, longest: float) -> Iterator[float]:
    """Of pauses, with work between them; the shortest and the longest are among them."""
    draw = ground.draw()
    found = [shortest, longest, *(draw.uniform(shortest, longest) for _ in range(ground.times(ROUNDS) - 2))]
    draw.shuffle(found)
    for seconds in found:
        nap(draw.uniform(*WORKS_S))
        ground.tell(f"for {seconds:.1f} s")
        yield seconds


def _tree(here: FleetUnderLoad, worker: str) -> list[psutil.Process]:
    """The worker first, so that nobody is told of the others."""
    own = psutil.Process(here.fleet.processes[worker].pid)
    others = processes_with(str(here.fleet.state / "workers" / worker))
    return [own, *(process for process in others if process.pid != own.pid)]


def _tell(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return
