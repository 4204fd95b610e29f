"""Workers that fail, go silent, come back: what becomes of them and of what they held."""

import pytest
from tests.core.core_fleet import holding
from tests.core.test_attempts import one_box, running, start_when_placed

from ostler.core.attempts import COOLDOWN_S, FAULTS_TO_COOL
from ostler.core.events import HubWasAway
from ostler.domain.worker import Slots

# Workers that fail


def test_a_worker_that_fails_again_and_again_is_left_alone_for_a_while() -> None:
    core = one_box(slots=1)
    for number in range(FAULTS_TO_COOL):
        job = core.submit(f"j{number}", max_attempts=0)
        core.start(job)
        core.end(job, "returned", fault="worker")
    job = core.submit("next")
    assert core.where(job) == ""
    assert "cools down for 60 s after 3 failures of its own" in core.why(job).summary
    core.wait(COOLDOWN_S - 1)
    assert core.where(job) == ""
    core.wait(2)
    assert core.where(job) == "box"


def test_each_further_failure_doubles_the_pause_up_to_a_bound() -> None:
    core = one_box(slots=1)
    pauses = []
    for number in range(8):
        job = core.submit(f"j{number}", max_attempts=0)
        start_when_placed(core, job)
        core.end(job, "returned", fault="worker")
        worker = core.fleet.workers["box"]
        pauses.append(round(worker.cooling_until - core.now) if worker.cooling else 0)
    assert pauses == [0, 0, 60, 120, 240, 480, 600, 600]


def test_a_success_or_a_new_process_clears_a_workers_name() -> None:
    core = one_box(slots=1)
    for number in range(6):
        job = core.submit(f"j{number}", max_attempts=0)
        core.start(job)
        core.end(job, *(("returned",) if number % 2 == 0 else ("failed",)), fault="worker" if number % 2 == 0 else "")
    assert not core.fleet.workers["box"].cooling
    for number in range(6, 9):
        job = core.submit(f"j{number}", max_attempts=0)
        core.start(job)
        core.end(job, "returned", fault="worker")
    assert core.fleet.workers["box"].cooling
    core.register("box", boot_id="another", slots=1)
    assert core.where(core.submit("next")) == "box"


def test_failures_of_jobs_are_not_the_workers() -> None:
    core = one_box(slots=1)
    for number in range(10):
        job = core.submit(f"j{number}")
        core.start(job)
        core.end(job, "failed")
    assert core.where(core.submit("next")) == "box"


# Silence


def test_silence_for_three_heartbeats_makes_a_worker_offline_and_its_tasks_orphans() -> None:
    core = one_box()
    job = running(core, job_tier="evaluation")
    core.wait(29, silent=True)
    assert core.state(job) == "running"
    core.wait(2, silent=True)
    assert not core.fleet.workers["box"].connected
    assert core.state(job) == "orphaned"


@pytest.mark.parametrize(
    ("tier", "grace_s"), [("data_processing", 30), ("evaluation", 120), ("training", 600), ("fine_tuning", 600)]
)
def test_an_orphan_waits_out_its_tiers_grace_counted_from_the_last_contact(tier: str, grace_s: float) -> None:
    core = one_box()
    job = running(core, job_tier=tier)
    core.wait(5, silent=True)
    core.leave("box")
    core.wait(grace_s - 6)
    assert core.state(job) == "orphaned"
    core.wait(2)
    assert core.state(job) == "pending"
    assert core.task(job).losses == 1


def test_an_orphan_that_had_not_been_accepted_costs_nothing_when_its_grace_is_over() -> None:
    core = one_box()
    job = core.submit("job")
    core.leave("box")
    assert core.state(job) == "orphaned"
    core.wait(31)
    assert (core.state(job), core.task(job).losses) == ("pending", 0)


def test_the_hubs_own_absence_is_nobody_elses_silence() -> None:
    core = one_box()
    job = running(core, job_tier="evaluation")
    core.now += 300
    core.turn(HubWasAway(300))
    assert core.state(job) == "running"
    assert core.fleet.workers["box"].connected
    core.wait(31, silent=True)
    assert core.state(job) == "orphaned"


def test_a_worker_that_reconnects_again_and_again_leaves_no_trail_of_reminders() -> None:
    core = one_box()
    for _ in range(200):
        core.now += 1.0
        core.register("box", slots=1)
    core.wait(60)
    assert len(core.fleet.timers.due(float("inf"))) < 10


def test_a_worker_that_is_told_its_slots_once_more_takes_no_more_than_before() -> None:
    core = one_box(slots=1)
    job = running(core)
    core.beat("box", holding((job, core.attempt(job))), slots=Slots(batch_total=1, batch_in_use=1))
    assert core.where(core.submit("next")) == ""
