"""A world with a witness: it looks at machines and ledger from outside and believes nothing that the hub says of itself.

Beside the world's own checks: the ledger alone gives the fleet in memory; where nothing fails, nothing clashes; once a world is
calm, no process runs that nobody authorised; at the end nothing is held, running or kept. And some machines never come back.
"""

import random
from collections.abc import Sequence
from functools import partial
from typing import Any

from tests.core.portrait import difference, portrait

from ostler.core.claims import LEASE_S
from ostler.core.events import CancelRequested, DrainRequested, HubWasAway, RequeueRequested, WorkerAsked
from ostler.core.persist import restore
from ostler.domain import states
from ostler.domain.job import JobSpec
from ostler.domain.worker import Capabilities
from ostler.sim.campaign import can_run_somewhere, random_job, random_machines, random_pullers, training_job
from ostler.sim.faults import NONE, Faults, drawn
from ostler.sim.machine import Machine
from ostler.sim.puller import Puller
from ostler.sim.world import EPOCH, Violation, World

LOOK_EVERY_S = 10.0
SETTLED_S = 100.0
"""After the last fault, and the last message that was under way, both sides agree within this time."""

TOLD_WITHIN_S = 60.0
"""A machine that only claims hears with its next heartbeat that it is to stop, and has some seconds to do so."""
COMPARE_EVERY = 3
"""Batches, between two comparisons of the ledger with memory."""
PATIENCE_S = 3 * 3600.0
"""Of calm, until all must have ended."""

LOSING = Faults(lose=0.3, duplicate=0.1)
CUTTING = Faults(lose=0.2, duplicate=0.1, cut_every_s=30.0)
"""Machines that only claim are cut off for longer than their leases, again and again."""
STALLING = Faults(lose=0.05, slow=0.1, slow_s=100.0, cut_every_s=60.0)
"""Connections that come to a halt and go on again."""


class Witness(World):
    def __init__(
        self, seed: int, machines: list[Any], faults: Faults = NONE, pullers: Sequence[Capabilities] = ()
    ) -> None:
        super().__init__(seed, machines, faults, pullers)
        self.check_every = 1_000_000  # after every batch is enough here
        self.settled_at = SETTLED_S if faults is NONE else float("inf")
        self._pumps = 0
        self._clashes = 0
        self._zombies: dict[str, float] = {}
        """Processes that run on though nobody authorised them, with when each was first seen."""
        self._worst_delay = faults.slow_s if faults.slow else 0.0
        self.after(LOOK_EVERY_S, self._look)

    def calm(self) -> None:
        super().calm()
        self.settled_at = self.now + self._worst_delay + SETTLED_S

    def lose_for_good(self, machine: Machine, silently: bool) -> None:
        """It burns down: nothing of it is seen again. Silently: the hub's end of the link stays open."""
        machine.reconnect = lambda: None  # type: ignore[method-assign]
        machine.processes.clear()
        machine.results.clear()
        if silently:
            machine.session = 0
        else:
            self.cut(machine)
        self.machines.remove(machine)

    def lose_puller_for_good(self, puller: Puller) -> None:
        puller.power_cut()
        puller.poll = lambda: None  # type: ignore[method-assign]
        self.pullers.remove(puller)

    def drain(self, machine: Machine | Puller, draining: bool) -> None:
        if machine.name in self.fleet.workers:
            self.hear(DrainRequested(ref=0, worker_id=machine.name, draining=draining))

    def ask(self, machine: Machine) -> None:
        if machine.session:
            self.to_hub(machine, WorkerAsked(worker_id=machine.name, session=machine.session), machine.session)

    def of_one_task(self, kind: type[CancelRequested] | type[RequeueRequested], job_id: str, index: int) -> None:
        if job_id in self.acknowledged:
            self.account.requeues[job_id] += kind is RequeueRequested
            if kind is CancelRequested:
                self.account.cancelled.add(job_id)
            self.hear(kind(ref=0, job_id=job_id, index=index))

    def stall(self, seconds: float) -> None:
        """The hub does not run for a while; what waits for it is read before anyone is declared lost."""
        if self.hub_up and not self._pumping:
            self._pumping = True
            self.after(seconds, self._wake_up)
            self._inbox.insert(0, HubWasAway(seconds))

    def _wake_up(self) -> None:
        self._pump()

    def _perform(self, effect: Any) -> None:
        if getattr(effect, "ref", 1) != 0:
            super()._perform(effect)

    def _pump(self) -> None:
        super()._pump()
        self._pumps += 1
        if self.hub_up and self._pumps % COMPARE_EVERY == 0:
            self._compare_with_ledger()

    def _compare_with_ledger(self) -> None:
        kept = portrait(restore(self.ledger.load(), lambda: "", self.now, EPOCH), self.now)
        for part, mine in portrait(self.fleet, self.now).items():
            if told := difference(mine, kept[part]):
                raise Violation(f"{part} of the ledger and of memory differ: {told}")

    def _look(self) -> None:
        self.after(LOOK_EVERY_S, self._look)
        if self.now > self.settled_at:
            if self.clashes > self._clashes:
                raise Violation("two tasks met on one GPU where nothing had failed")
            self._look_for_zombies()
        self._clashes = self.clashes

    def _look_for_zombies(self) -> None:
        patience = {attempt: 0.0 for machine in self.machines for attempt in self._unauthorised(machine)}
        obedient = [puller for puller in self.pullers if not puller.stubborn]
        patience |= {attempt: TOLD_WITHIN_S for puller in obedient for attempt in self._unauthorised(puller)}
        self._zombies = {attempt: self._zombies.get(attempt, self.now) for attempt in patience}
        found = sorted(one for one, since in self._zombies.items() if self.now > since + patience[one])
        if found:
            raise Violation(f"runs on and nobody authorised it: {found[:3]}")

    def _unauthorised(self, machine: Machine | Puller) -> list[str]:
        found = []
        for process in machine.processes.values():
            attempt = self.fleet.held.get(process.attempt)
            if not process.stopping and (attempt is None or not attempt.is_current()):
                found.append(process.attempt)
        return found

    def at_rest(self) -> None:
        """All has ended: nothing may be left of it anywhere."""
        for machine in self.machines:
            if machine.processes or machine.results:
                left = [*machine.processes, *machine.results]
                raise Violation(f"{machine.name} still has {left[:3]}")
            held = self.fleet.workers[machine.name].attempts
            if held:
                raise Violation(f"{machine.name} is still held by {list(held)[:3]}")
        for puller in self.pullers:
            claims = self.fleet.workers[puller.name].attempts
            if puller.processes or claims:
                raise Violation(f"{puller.name} still has {[*puller.processes, *claims][:3]}")
        mistakes = self.account.mistakes(self.ledger)
        if mistakes:
            raise Violation(f"the ledger is not what happened: {mistakes[:3]}")
        ended = [job.id for job in self.fleet.jobs.values() if job.state in states.TERMINAL]
        if ended:
            raise Violation(f"ended and still in memory: {ended[:3]}")


def run_claims(seed: int) -> Witness:
    """The same where most jobs are for training and most machines only claim."""
    return run(seed, machines=2, pullers=4, horizon_s=2400.0)


def run(seed: int, *, machines: int = 4, jobs: int = 20, pullers: int = 0, horizon_s: float = 1200.0) -> Witness:
    """One witnessed world from start to rest. Of four seeds, one is where nothing fails and one where frames get lost."""
    rng = random.Random(f"witnessed {seed}")
    faults = [NONE, LOSING, drawn(rng), drawn(rng)][seed % 4]
    if pullers:
        faults = [NONE, CUTTING, STALLING, drawn(rng)][seed % 4]
    world = Witness(seed, random_machines(rng, machines), faults, random_pullers(rng, pullers))
    for number in range(jobs):
        kind = training_job if pullers and rng.random() < 0.7 else random_job
        spec, duration = kind(rng, number)
        world.at(rng.uniform(0, horizon_s * 0.7), partial(world.submit, spec, duration))
        _meddle(world, rng, spec, horizon_s)
    if faults is not NONE and rng.random() < 0.5:
        lost, silently = rng.choice(world.machines), rng.random() < 0.5
        world.at(rng.uniform(0, horizon_s), partial(world.lose_for_good, lost, silently))
    if pullers > 2 and faults is not NONE:
        world.at(rng.uniform(0, horizon_s), partial(world.lose_puller_for_good, world.pullers[2]))
    for machine in world.machines:
        world.at(rng.uniform(0, horizon_s), partial(world.ask, machine))
    drained = rng.choice(world.machines)
    world.at(horizon_s * 0.4, partial(world.drain, drained, True))
    world.at(horizon_s * 0.6, partial(world.drain, drained, False))
    world.at(horizon_s * 0.5, partial(world.stall, rng.choice((25.0, 90.0))))
    world.run(horizon_s)
    world.calm()
    world.after(SETTLED_S, partial(world.drain, drained, False))  # the hub may have been down the first time
    _run_to_the_end(world)
    return world


def _meddle(world: Witness, rng: random.Random, spec: JobSpec, horizon_s: float) -> None:
    """People cancel and requeue, whole jobs and single tasks."""
    if rng.random() < 0.2:
        world.at(rng.uniform(0, horizon_s), lambda: spec.id in world.acknowledged and world.cancel(spec.id))
    if rng.random() < 0.2:
        world.at(rng.uniform(0, horizon_s), partial(world.requeue, spec.id))
    if spec.array and rng.random() < 0.5:
        kind = rng.choice((CancelRequested, RequeueRequested))
        index = rng.randrange(spec.array)
        world.at(rng.uniform(0, horizon_s), partial(world.of_one_task, kind, spec.id, index))


def _run_to_the_end(world: Witness) -> None:
    over_at = world.now + PATIENCE_S
    while True:
        world.run(world.now + 300.0)
        left = [line for line in world.unfinished() if can_run_somewhere(world, line.partition(":")[0])]
        rests = world.settled_at + (LEASE_S if world.pullers else 0.0) + 100.0
        if not left and world.now > rests:
            break
        if world.now > over_at:
            raise Violation(f"still not ended after {PATIENCE_S / 3600:.0f} calm hours: {left[:5]}")
    world.at_rest()
