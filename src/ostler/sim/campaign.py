"""Seeded runs of the whole world, from the first event to the calm in which everything must end."""

import msgspec

from ostler.core.match import never_offered
from ostler.domain.states import TERMINAL
from ostler.sim.account import Violation, left_over
from ostler.sim.agent import LONGEST_TURN_S
from ostler.sim.drawing import Size, drawn
from ostler.sim.plan import Plan
from ostler.sim.world import CHECK_EVERY, World

PATIENCE_S = 1800.0
"""Of calm, beside the time that all jobs take one after another, turns in other queues included: then all must have
ended."""
ASK_EVERY_S = 30.0


def run_seed(
    seed: int,
    *,
    machines: int | None = None,
    jobs: int | None = None,
    pullers: int | None = None,
    ahead: int | None = None,
    horizon_s: float | None = None,
    check_every: int = CHECK_EVERY,
) -> World:
    """One world from start to calm end; raises on the first violation. What is not said follows from the seed."""
    size = Size(machines=machines, jobs=jobs, pullers=pullers, ahead=ahead, horizon_s=horizon_s)
    return live(World(drawn(seed, size), check_every))


def run_plan(given: Plan, check_every: int = CHECK_EVERY) -> World:
    return live(World(given, check_every))


def live(world: World) -> World:
    """From its first event to its last."""
    world.run(world.plan.horizon_s)
    world.calm()
    turn_s = LONGEST_TURN_S if any(machine.queue for machine in world.plan.machines) else 0.0
    patience_s = PATIENCE_S + sum((job.duration_s + turn_s) * max(1, job.spec.size()) for job in world.plan.jobs)
    over_at = max(world.now, world.settled_at) + patience_s
    while True:
        world.run(world.now + ASK_EVERY_S)
        left = [name for name in world.unfinished() if can_run_somewhere(world, name)]
        left = left or left_over(world)
        if not left and world.now > world.settled_at:
            break
        if world.now > over_at:
            raise Violation(f"still not ended after {patience_s / 60:.0f} calm minutes: {left[:5]}")
    mistakes = world.account.mistakes(world.ledger) + world.promises.broken(world)
    if mistakes:
        raise Violation(f"the ledger is not what happened: {mistakes[:5]}")
    return world


def can_run_somewhere(world: World, job_id: str) -> bool:
    """It fits the fleet, and so does what it waits for."""
    record = world.ledger.jobs([job_id])[job_id]
    if record.state in TERMINAL:
        return True
    if not all(can_run_somewhere(world, name) for name in record.blocked_on):
        return False
    request = record.request
    offers = [
        (one.name, msgspec.structs.replace(one.capabilities.offer(), is_plain=one.is_plain)) for one in world.machines
    ]
    offers += [(one.name, msgspec.structs.replace(one.capabilities.offer(), claims=True)) for one in world.pullers]
    able = sum(not never_offered(request, name, offer) for name, offer in offers)
    return able >= request.nodes
