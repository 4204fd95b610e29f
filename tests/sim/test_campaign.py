"""Whole fleets on a virtual clock: faults of every kind, each seed with its own; what must hold, and a witness outside."""

import hashlib
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.sim.witness import run, run_claims

from ostler.core import attempts, outcomes
from ostler.core.events import WorkerBeat
from ostler.core.placing import ahead
from ostler.domain import states
from ostler.domain.job import TIER_GRACE_S, JobSpec
from ostler.domain.scheduling import LEAST_CLAIM_LEASE_S
from ostler.domain.worker import Capabilities
from ostler.sim import plan
from ostler.sim import world as worlds
from ostler.sim.__main__ import main, run_some
from ostler.sim.account import Violation
from ostler.sim.campaign import live, run_plan, run_seed
from ostler.sim.drawing import Size, drawn
from ostler.sim.machine import Process
from ostler.sim.plan import STEADY_S, Deed, Plan, PlannedJob, PlannedMachine, Weather, decoded, encoded
from ostler.sim.shrink import Regression, keep, kept, shrunk, violation_of
from ostler.sim.world import World

SEEDS = 1000
SHARES = 20
REGRESSIONS = Path(__file__).parent / "regressions"


def told(seed: int) -> str:
    return f"seed {seed}; repeat it with: python -m ostler.sim --seed {seed}"


@pytest.mark.parametrize(
    "share", [share if share < 5 else pytest.param(share, marks=pytest.mark.long) for share in range(SHARES)]
)
def test_a_thousand_seeds_break_nothing(share: int) -> None:
    """Nothing accepted is lost, nothing runs where it must not, and once it is calm everything ends."""
    record = run_some(range(share, SEEDS, SHARES))
    assert record.seeds == SEEDS // SHARES
    assert record.broken == [], told(record.broken[0].seed)


def test_every_invariant_holds_after_every_event() -> None:
    record = run_some(range(20_000, 20_008), check_every=1)
    assert record.broken == [], told(record.broken[0].seed)


@pytest.mark.parametrize("seed", range(8))
def test_a_witness_outside_agrees_with_the_hub(seed: int) -> None:
    """The ledger alone gives the fleet that is in memory."""
    run(seed)


@pytest.mark.parametrize("seed", range(3))
def test_a_witness_outside_agrees_about_machines_that_only_claim(seed: int) -> None:
    run_claims(seed)


@pytest.mark.parametrize("name", kept(REGRESSIONS))
def test_what_was_found_once_is_not_found_again(name: str) -> None:
    run_plan(kept(REGRESSIONS)[name].plan, check_every=1)


# What the seeds are made of


def test_a_hundred_plans_draw_every_fault_and_every_trait_and_none_draws_all() -> None:
    plans = [drawn(seed) for seed in range(100)]
    faults = [frozenset(one.kinds() & set(plan.FAULTS)) for one in plans]
    assert set().union(*faults) == set(plan.FAULTS)
    assert not any(found == set(plan.FAULTS) for found in faults)
    assert len(set(faults)) > 30, "each takes its own subset"
    specs = [job.spec for one in plans for job in one.jobs]
    traits = Counter(
        trait
        for spec in specs
        for trait, has_it in {
            "array": spec.array,
            "gang": spec.node_count > 1,
            "gpu": spec.gpu_count,
            "share": spec.min_vram_gb,
            "needs": spec.depends_on,
            "yields": spec.preemptible,
            "alone": spec.on_lost_contact == "stop",
            "budget": spec.max_runtime_hours,
            "prefers": spec.prefer_cuda,
        }.items()
        if has_it
    )
    assert min(traits.values()) > 10 and len(traits) == 9
    machines = [machine for one in plans for machine in one.machines]
    assert all(any(getattr(machine, kind) for machine in machines) for kind in ("real", "claims", "stubborn", "ahead"))
    assert {one.weather.in_order for one in plans} == {True, False}


def test_messages_may_be_later_than_any_grace_and_half_of_the_jobs_take_longer_than_the_longest() -> None:
    plans = [drawn(seed) for seed in range(200)]
    longest = {one.seed: max(TIER_GRACE_S[job.spec.job_tier] for job in one.jobs) for one in plans}
    assert any(one.weather.slow and one.weather.slow_s >= 1.5 * longest[one.seed] for one in plans)
    jobs = [(job.duration_s, longest[one.seed]) for one in plans for job in one.jobs if job.spec.command != ["short"]]
    long = sum(duration_s > grace_s for duration_s, grace_s in jobs)
    assert 0.4 < long / len(jobs) < 0.65


def one_job(*deeds: Deed, weather: Weather | None = None, **spec: Any) -> Plan:
    """One machine, and a job that takes a minute."""
    offer, slots = Capabilities(cpu_count=2, memory_gb=8), 2
    job = PlannedJob(5.0, JobSpec(id="j0", command=["true"], **spec), 60.0)
    return Plan(
        seed=1,
        horizon_s=300.0,
        weather=weather or Weather(in_order=True),
        machines=[PlannedMachine(name="w0", offer=offer, slots=slots)],
        jobs=[job],
        deeds=list(deeds),
        failing=0.0,
    )


def attempts_of(world: World, task_id: str = "j0") -> list[str]:
    return [attempt.state for attempt in world.ledger.attempts_of(task_id)]


@pytest.mark.parametrize("point", [plan.AT_REST, plan.BEFORE_COMMIT, plan.AFTER_COMMIT, plan.AMONG_EFFECTS])
def test_a_hub_that_dies_at_any_point_of_a_batch_comes_back_with_what_was_committed(point: int) -> None:
    world = run_plan(one_job(Deed(20.0, plan.HUB_CRASH, "", 10.0, point)))
    assert world.done[plan.HUB_CRASH] == 1
    assert attempts_of(world) == ["succeeded"]


def test_a_job_that_was_stepped_and_not_committed_was_never_acknowledged() -> None:
    world = World(one_job(Deed(5.001, plan.HUB_CRASH, "", 10.0, plan.BEFORE_COMMIT)))
    world.run(300.0)
    assert (world.acknowledged, world.ledger.jobs(["j0"])) == (set(), {})


@pytest.mark.parametrize("what", [plan.CUT, plan.CUT_UP, plan.CUT_DOWN, plan.WORKER_KILLED, plan.WORKER_STALL])
def test_a_task_outlives_its_workers_absence_within_the_grace(what: str) -> None:
    world = run_plan(one_job(Deed(20.0, what, "w0", 50.0), job_tier="evaluation"))
    assert attempts_of(world) == ["succeeded"]


def test_a_power_cut_takes_the_task_along_and_it_runs_again() -> None:
    world = run_plan(one_job(Deed(20.0, plan.POWER_CUT, "w0", 5.0)))
    assert attempts_of(world) == ["lost", "succeeded"]


def test_a_hub_that_was_held_up_declares_nobody_lost() -> None:
    world = run_plan(one_job(Deed(20.0, plan.HUB_STALL, "", 90.0)))
    assert attempts_of(world) == ["succeeded"]


def test_a_jump_of_the_wall_clock_changes_nothing_for_what_runs() -> None:
    jumps = [Deed(10.0 + 10 * number, plan.WALL_JUMP, "", seconds) for number, seconds in enumerate((-7200, 3600))]
    world = run_plan(one_job(*jumps, max_runtime_hours=0.1, scheduling_timeout_seconds=60.0))
    assert attempts_of(world) == ["succeeded"]


def test_machines_that_take_tasks_ahead_do(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    begin = ahead.begin_ahead
    monkeypatch.setattr(ahead, "begin_ahead", lambda *given: (sent.append(1), begin(*given))[1])
    for seed in range(4):
        run_seed(seed, machines=3, jobs=12, pullers=0, ahead=8)
    assert len(sent) > 100


# What is demanded of a world in which nothing fails


@pytest.mark.parametrize("is_old", [True, False])
def test_a_loss_where_nothing_failed_is_a_mistake_unless_an_old_account_came_after_the_acceptance(is_old: bool) -> None:
    world = World(one_job(weather=Weather()))
    world.run(20.0)
    session, newest = world.machines[0].session, world.network.carried
    empty = WorkerBeat(worker_id="w0", session=session, active_tasks=[])
    world.network.overtaken.heard(empty, session, 0 if is_old else newest)
    world.hear(empty)
    if is_old:
        assert attempts_of(live(world)) == ["lost", "succeeded"]
    else:
        with pytest.raises(Violation, match="j0 was lost where nothing had failed"):
            live(world)


def test_what_fails_and_is_displaced_before_anybody_hears_of_it_spends_no_retry() -> None:
    late = Weather(slow=1.0, slow_s=STEADY_S, in_order=True)
    world = World(msgspec.structs.replace(one_job(weather=late, min_cpu_cores=2.0, preemptible=True), failing=1.0))
    urgent = PlannedJob(0.0, JobSpec(id="j1", command=["true"], min_cpu_cores=2.0, priority=5), 20.0)
    exited = world.exited

    def displaced(process: Process, state: str) -> None:
        exited(process, state)
        if "j1" not in world.acknowledged:
            world.submit(urgent)

    world.exited = displaced  # type: ignore[method-assign]
    live(world)
    assert attempts_of(world) == ["failed", "failed"]
    assert [one.stop_reason for one in world.ledger.attempts_of("j0")] == ["preempted by j1", ""]


def test_a_task_that_is_given_up_before_its_last_retry_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = outcomes.failed

    def impatient(fleet: Any, task: Any, what: str, now: float) -> Any:
        task.failures += 1
        return failed(fleet, task, what, now)

    monkeypatch.setattr(outcomes, "failed", impatient)
    with pytest.raises(Violation, match="j0 was given up after 1 failures; max_retries is 1"):
        live(World(msgspec.structs.replace(one_job(max_retries=1), failing=1.0)))


# The same again


def traced(seed: int) -> str:
    """A digest of every event that the core was given and of everything that it answered."""
    digest = hashlib.sha256()
    step, settle = worlds.step, worlds.settle

    def telling(fleet: Any, event: Any, now: float) -> Any:
        effects = step(fleet, event, now)
        digest.update(repr((now, event, effects)).encode())
        return effects

    def placing(fleet: Any, now: float) -> Any:
        effects = settle(fleet, now)
        digest.update(repr((now, effects)).encode())
        return effects

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worlds, "step", telling)
        patch.setattr(worlds, "settle", placing)
        world = run_seed(seed)
    rows = world.ledger.jobs(world.acknowledged)
    digest.update(repr(sorted((job.id, job.state, job.counts) for job in rows.values())).encode())
    return digest.hexdigest()


def test_the_same_seed_gives_the_same_trace_and_another_seed_another() -> None:
    assert traced(5) == traced(5) != traced(6)


def test_a_seed_gives_the_same_trace_in_another_process_however_strings_are_hashed() -> None:
    code = "from tests.sim.test_campaign import traced; print([traced(seed) for seed in range(7, 12)])"
    found = set()
    for hashed in ("1", "99"):
        variables = os.environ | {"PYTHONHASHSEED": hashed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True)
        found.add(done.stdout)
    assert len(found) == 1


def test_a_plan_is_the_same_after_it_was_written_down() -> None:
    for seed in range(20):
        assert decoded(encoded(drawn(seed))) == drawn(seed)


# Smaller


def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug: a task that shall run again is pending, and does not wait."""

    def forgetful(fleet: Any, task: Any, reason: str, now: float) -> None:
        attempts.set_state(fleet, task, states.PENDING, reason, now)

    monkeypatch.setattr(attempts, "back_to_pending", forgetful)


def test_a_plan_that_breaks_something_is_reduced_to_what_it_takes_and_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    planted(monkeypatch)
    seed = next(seed for seed in range(20) if violation_of(drawn(seed)))
    whole = drawn(seed)
    small = shrunk(whole)
    assert violation_of(small) == violation_of(whole)
    assert (len(small.jobs), len(small.machines)) <= (2, 2)
    assert len(small.deeds) < len(whole.deeds)
    path = keep(Regression(f"seed {seed}", violation_of(small), small), tmp_path)
    assert kept(tmp_path)[path.stem].plan == small
    monkeypatch.undo()
    run_plan(small, check_every=1)


def test_a_plan_that_breaks_nothing_stays_as_it_is() -> None:
    assert shrunk(drawn(3)) == drawn(3)


def test_a_campaign_says_what_it_tried_and_how_to_repeat_what_it_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "record.json"
    assert main(["--seeds", "3", "--record", str(file)]) == 0
    assert "3 seeds" in capsys.readouterr().out
    assert b'"broken": []' in file.read_bytes()
    planted(monkeypatch)
    assert main(["--seeds", "20", "--shrink", "--regressions", str(tmp_path / "found")]) == 1
    assert "python -m ostler.sim --seed" in capsys.readouterr().out
    assert len(kept(tmp_path / "found")) >= 1


def test_three_hundred_workers_end_all_their_work() -> None:
    """A fleet of real size, looked at now and then: every check costs shapes times workers."""
    base = drawn(300, Size(machines=300, jobs=400, pullers=0, ahead=0, horizon_s=120.0))
    deeds = [Deed(40.0, plan.HUB_CRASH, "", 5.0, plan.AMONG_EFFECTS)]
    deeds += [Deed(10.0 + number, plan.CUT, f"w{3 * number}", 3.0) for number in range(40)]
    base.deeds, base.weather, base.quota = deeds, Weather(lose=0.01, duplicate=0.01), type(base.quota)()
    base.failing = 0.1
    for job in base.jobs:
        job.duration_s = min(job.duration_s, 40.0)
        job.spec.depends_on, job.spec.max_runtime_hours = [], 0.0
    world = live(World(base, check_every=200))
    ended = Counter(job.state for job in world.ledger.jobs(world.acknowledged).values())
    assert ended.total() > 300
    assert ended[states.SUCCEEDED] > 0.7 * ended.total()


def test_a_machine_that_is_cut_off_has_killed_its_claim_before_a_short_lease_ends() -> None:
    """Whatever the lease: another machine gets the job only when the first has ended it."""
    offer = Capabilities(cpu_count=2, memory_gb=8)
    world = run_plan(
        Plan(
            seed=1,
            horizon_s=600.0,
            weather=Weather(in_order=True),
            machines=[PlannedMachine(name=name, offer=offer, claims=True) for name in ("p0", "p1")],
            jobs=[
                PlannedJob(
                    5.0, JobSpec(id="j0", command=["true"], on_lost_contact="stop", allowed_hosts=["p0", "p1"]), 300.0
                )
            ],
            deeds=[Deed(40.0, plan.CUT, "p0", 250.0)],
            failing=0.0,
            claim_lease_s=LEAST_CLAIM_LEASE_S,
        )
    )
    assert attempts_of(world) == ["lost", "succeeded"]


def test_some_worlds_of_machines_that_claim_have_short_leases() -> None:
    plans = [drawn(seed, Size(pullers=2)) for seed in range(100)]
    leases = Counter(one.claim_lease_s for one in plans)
    assert leases[0.0] > leases[LEAST_CLAIM_LEASE_S] > 10
