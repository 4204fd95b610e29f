"""Workers that fail, go silent, come back: what becomes of them and of what they held."""

import pytest
from tests.core.test_attempts import one_box, running, start_when_placed
from tests.core.yard import holding

from ostler.core.attempts import COOLDOWN_S, FAULTS_TO_COOL
from ostler.core.events import HubWasAway
from ostler.domain.worker import Slots

# Workers that fail


def test_a_worker_that_fails_again_and_again_is_left_alone_for_a_while() -> None:
    yard = one_box(slots=1)
    for number in range(FAULTS_TO_COOL):
        job = yard.submit(f"j{number}", max_attempts=0)
        yard.start(job)
        yard.end(job, "returned", fault="worker")
    job = yard.submit("next")
    assert yard.where(job) == ""
    assert "cools down for 60 s after 3 failures of its own" in yard.why(job).summary
    yard.wait(COOLDOWN_S - 1)
    assert yard.where(job) == ""
    yard.wait(2)
    assert yard.where(job) == "box"


def test_each_further_failure_doubles_the_pause_up_to_a_bound() -> None:
    yard = one_box(slots=1)
    pauses = []
    for number in range(8):
        job = yard.submit(f"j{number}", max_attempts=0)
        start_when_placed(yard, job)
        yard.end(job, "returned", fault="worker")
        worker = yard.fleet.workers["box"]
        pauses.append(round(worker.cooling_until - yard.now) if worker.cooling else 0)
    assert pauses == [0, 0, 60, 120, 240, 480, 600, 600]


def test_a_success_or_a_new_process_clears_a_workers_name() -> None:
    yard = one_box(slots=1)
    for number in range(6):
        job = yard.submit(f"j{number}", max_attempts=0)
        yard.start(job)
        yard.end(job, *(("returned",) if number % 2 == 0 else ("failed",)), fault="worker" if number % 2 == 0 else "")
    assert not yard.fleet.workers["box"].cooling
    for number in range(6, 9):
        job = yard.submit(f"j{number}", max_attempts=0)
        yard.start(job)
        yard.end(job, "returned", fault="worker")
    assert yard.fleet.workers["box"].cooling
    yard.register("box", boot_id="another", slots=1)
    assert yard.where(yard.submit("next")) == "box"


def test_failures_of_jobs_are_not_the_workers() -> None:
    yard = one_box(slots=1)
    for number in range(10):
        job = yard.submit(f"j{number}")
        yard.start(job)
        yard.end(job, "failed")
    assert yard.where(yard.submit("next")) == "box"


# Silence


def test_silence_for_three_heartbeats_makes_a_worker_offline_and_its_tasks_orphans() -> None:
    yard = one_box()
    job = running(yard, job_tier="evaluation")
    yard.wait(29, silent=True)
    assert yard.state(job) == "running"
    yard.wait(2, silent=True)
    assert not yard.fleet.workers["box"].connected
    assert yard.state(job) == "orphaned"


@pytest.mark.parametrize(
    ("tier", "grace_s"), [("data_processing", 30), ("evaluation", 120), ("training", 600), ("fine_tuning", 600)]
)
def test_an_orphan_waits_out_its_tiers_grace_counted_from_the_last_contact(tier: str, grace_s: float) -> None:
    yard = one_box()
    job = running(yard, job_tier=tier)
    yard.wait(5, silent=True)
    yard.leave("box")
    yard.wait(grace_s - 6)
    assert yard.state(job) == "orphaned"
    yard.wait(2)
    assert yard.state(job) == "pending"
    assert yard.task(job).losses == 1


def test_an_orphan_that_had_not_been_accepted_costs_nothing_when_its_grace_is_over() -> None:
    yard = one_box()
    job = yard.submit("job")
    yard.leave("box")
    assert yard.state(job) == "orphaned"
    yard.wait(31)
    assert (yard.state(job), yard.task(job).losses) == ("pending", 0)


def test_the_hubs_own_absence_is_nobody_elses_silence() -> None:
    yard = one_box()
    job = running(yard, job_tier="evaluation")
    yard.now += 300
    yard.turn(HubWasAway(300))
    assert yard.state(job) == "running"
    assert yard.fleet.workers["box"].connected
    yard.wait(31, silent=True)
    assert yard.state(job) == "orphaned"


def test_a_worker_that_reconnects_again_and_again_leaves_no_trail_of_reminders() -> None:
    yard = one_box()
    for _ in range(200):
        yard.now += 1.0
        yard.register("box", slots=1)
    yard.wait(60)
    assert len(yard.fleet.timers.due(float("inf"))) < 10


def test_a_worker_that_is_told_its_slots_once_more_takes_no_more_than_before() -> None:
    yard = one_box(slots=1)
    job = running(yard)
    yard.beat("box", holding((job, yard.attempt(job))), slots=Slots(batch_total=1, batch_in_use=1))
    assert yard.where(yard.submit("next")) == ""
