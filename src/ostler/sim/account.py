"""What really happened on the machines, compared with what the hub says happened."""

from collections import Counter
from typing import TYPE_CHECKING

from ostler.domain import states
from ostler.ledger.base import Ledger

if TYPE_CHECKING:
    from ostler.sim.machine import Machine, Process
    from ostler.sim.puller import Puller
    from ostler.sim.world import World

FEED_PAGE = 10_000
SETTLED_S = 100.0
"""After the last fault, and the last message that was under way, both sides agree within this time."""
TOLD_WITHIN_S = 60.0
"""A machine that only claims hears with its next heartbeat that it is to stop, and has some seconds to do so."""


class Violation(AssertionError):
    """The world saw something that must never happen."""


class Account:
    def __init__(self) -> None:
        self.succeeded: set[str] = set()
        """Attempts of which a process ended well."""
        self.taken: set[tuple[str, str]] = set()
        """(task, attempt) of the successes that the hub has told a machine it took."""
        self.requeues: Counter[str] = Counter()
        self.cancelled: set[str] = set()
        self._clashes = 0
        self._zombies: dict[str, float] = {}
        """Processes that run on though nobody authorised them, with when each was first seen."""

    def mistakes(self, ledger: Ledger) -> list[str]:
        """Each success is some process's, recorded once, and only whoever brought one is told that it did."""
        recorded = _successes(ledger)
        found = [f"{one} succeeded, and its process did not" for one in recorded if one[1] not in self.succeeded]
        times: Counter[str] = Counter()
        for (task_id, _), count in recorded.items():
            times[task_id] += count
        too_often = [name for name, count in times.items() if count > 1 + self.requeues[_job(name)]]
        found += [f"{name} succeeded {times[name]} times" for name in too_often]
        unrecorded = [one for one in sorted(self.taken) if one not in recorded and _job(one[0]) not in self.cancelled]
        return found + [f"{attempt} was told that it completed {task_id}" for task_id, attempt in unrecorded]

    def look(self, world: "World") -> None:
        """Where nothing has failed for a while, nothing clashes, and nothing runs that nobody authorised."""
        if world.now > world.settled_at:
            if world.in_order and world.clashes > self._clashes:
                raise Violation("two tasks met on one GPU where nothing had failed")
            self._look_for_zombies(world)
        self._clashes = world.clashes

    def _look_for_zombies(self, world: "World") -> None:
        patience = {attempt: 0.0 for machine in world.machines for attempt in _unauthorised(world, machine)}
        obedient = [puller for puller in world.pullers if not puller.stubborn]
        patience |= {one: TOLD_WITHIN_S + puller.beat_s for puller in obedient for one in _unauthorised(world, puller)}
        self._zombies = {attempt: self._zombies.get(attempt, world.now) for attempt in patience}
        found = sorted(one for one, since in self._zombies.items() if world.now > since + patience[one])
        if found:
            raise Violation(f"runs on and nobody authorised it: {found[:3]}")


def starts(world: "World", machine: "Machine | Puller", process: "Process") -> None:
    """Nobody else is on its devices, and what must run alone does."""
    if world.in_order and (world.alone_for(process.task_id) or world.is_steady) and not machine.stubborn:
        _runs_alone(world, machine, process)
    taken: dict[int, str] = {}
    for other in machine.processes.values():
        for device in other.devices if other.whole else ():
            if device in taken:
                raise Violation(f"{machine.name}: {taken[device]} and {other.task_id} both run on GPU {device}")
            taken[device] = other.task_id


def _runs_alone(world: "World", machine: "Machine | Puller", process: "Process") -> None:
    others: list[Machine | Puller] = [*world.machines, *world.pullers]
    for other in [one for one in others if not one.stubborn]:
        for beside in other.processes.values():
            if beside is not process and beside.task_id == process.task_id:
                raise Violation(f"{process.task_id} runs on {other.name} and on {machine.name} at once")


def left_over(world: "World") -> list[str]:
    """What there is on machines and in the hub's memory that nobody needs once all has ended."""
    found = []
    for machine in world.machines:
        here = world.fleet.workers.get(machine.name)
        left = [*machine.processes, *machine.kept(), *(here.attempts if here is not None else ())]
        found += [f"{machine.name} still has {left[:3]}"] if left else []
    for puller in world.pullers:
        there = world.fleet.workers.get(puller.name)
        claims = [*puller.processes, *(there.attempts if there is not None else ())]
        found += [f"{puller.name} still has {claims[:3]}"] if claims else []
    ended = [job.id for job in world.fleet.jobs.values() if job.state in states.TERMINAL]
    return found + ([f"ended and still in memory: {ended[:3]}"] if ended and not world.is_busy else [])


def _unauthorised(world: "World", machine: "Machine | Puller") -> list[str]:
    found = []
    for process in machine.processes.values():
        attempt = world.fleet.held.get(process.attempt)
        if not process.stopping and (attempt is None or not attempt.is_current()):
            found.append(process.attempt)
    return found


def _job(task_id: str) -> str:
    return task_id.partition(".")[0]


def _successes(ledger: Ledger) -> Counter[tuple[str, str]]:
    """(task, attempt), as observers have seen them."""
    found: Counter[tuple[str, str]] = Counter()
    last = 0
    while page := ledger.feed(after=last, limit=FEED_PAGE):
        last = page[-1].seq
        for line in page:
            attempt = line.body.get("attempt")
            if line.body.get("state") == states.SUCCEEDED and attempt:
                found[str(line.body.get("task") or line.subject), str(attempt)] += 1
    return found
