"""Several events about one thing at the same instant: each is taken as if it had come alone, one after the other."""

import pytest
from tests.core.core_fleet import CoreFleet, capabilities, entry, holding, submission
from tests.core.portrait import difference, portrait

from ostler.core.claims import LEASE_S
from ostler.core.effects import Answer, Beaten, Claimed, Followed, HintSnapshot, NothingToClaim, Refuse
from ostler.core.events import ClaimBeat, ManifestApplied, WorkerRegistered
from ostler.domain import states
from ostler.domain.worker import Slots


def beating(name: str, task_id: str, attempt: str = "") -> ClaimBeat:
    return ClaimBeat(ref=900, worker_id=name, task_id=task_id, attempt=attempt)


def registering(name: str, session: int = 77) -> WorkerRegistered:
    return WorkerRegistered(worker_id=name, session=session, capabilities=capabilities())


def changes(core: CoreFleet) -> list[dict[str, str]]:
    return [{line.job_id: line.change for line in answer.lines} for answer in core.of(Followed)]


def survives_a_restart(core: CoreFleet) -> None:
    kept = portrait(core.restored(), core.now)
    for part, mine in portrait(core.fleet, core.now).items():
        assert not difference(mine, kept[part]), part


# Claims


def test_a_job_claimed_and_cancelled_at_once_tells_its_machine_at_its_first_heartbeat() -> None:
    core = CoreFleet()
    core.submit("a", min_cpu_cores=4)
    said = core.turn(core.claiming("pi"), core.cancellation("a"), beating("pi", "a"))
    kinds = [type(one) for one in said if isinstance(one, (Claimed, Answer, Beaten))]
    assert (kinds, core.of(Beaten)[0].cancel) == ([Claimed, Answer, Beaten], True)
    assert (core.state("a"), core.free("pi")[0]) == (states.CANCELLED, 0)
    survives_a_restart(core)
    assert core.claim_end("pi", "a", "failed")
    assert core.free("pi")[0] == 4000


def test_a_job_claimed_and_requeued_at_once_waits_for_the_end_of_that_claim() -> None:
    core = CoreFleet()
    core.submit("a")
    core.turn(core.claiming("p1"), core.requeueing("a"), core.claiming("p2"))
    assert [type(one) for one in core.heard if isinstance(one, (Claimed, NothingToClaim))] == [Claimed, NothingToClaim]
    survives_a_restart(core)
    core.wait(LEASE_S + 1)
    assert (core.queue(), core.task("a").losses) == (["a"], 0)


def test_a_claim_that_is_complete_in_the_batch_of_its_claim_counts() -> None:
    core = CoreFleet()
    core.submit("a")
    core.turn(core.claiming("pi"), core.claim_ending("pi", "a"), core.claim_ending("pi", "a"))
    assert len(core.of(Answer)) == 2
    assert core.state("a") == states.SUCCEEDED
    assert core.fleet.jobs == {}


@pytest.mark.parametrize("state", ["succeeded", "failed"])
def test_an_end_at_the_instant_at_which_the_lease_ends_still_counts(state: str) -> None:
    core = CoreFleet()
    core.submit("a")
    core.claim("pi")
    core.now += LEASE_S
    assert core.claim_end("pi", "a", state)
    assert (core.state("a"), core.task("a").losses) == (state, 0)


def test_a_heartbeat_at_the_instant_at_which_the_lease_ends_renews_it() -> None:
    core = CoreFleet()
    core.submit("a")
    core.claim("pi")
    core.now += LEASE_S
    assert core.claim_beat("pi", "a") is False
    core.wait(LEASE_S - 1)
    assert core.state("a") == states.RUNNING
    core.wait(1)
    assert core.state("a") == states.PENDING


def test_an_end_after_the_lease_has_ended_is_refused_however_often_it_is_said() -> None:
    core = CoreFleet()
    core.submit("a")
    claim = core.claim("pi")
    assert isinstance(claim, Claimed)
    core.wait(LEASE_S)
    both = [core.claim_ending("pi", "a", attempt=claim.attempt) for _ in range(2)]
    core.turn(*both)
    assert len(core.of(Refuse)) == 2
    assert not core.claim_end("pi", "a", attempt=claim.attempt)
    assert core.queue() == ["a"]


def test_a_success_that_was_refused_is_refused_again_when_its_answer_got_lost() -> None:
    """The hub has given the job to others since: a machine must not believe that its model was taken."""
    core = CoreFleet()
    core.submit("a")
    claim = core.claim("pi")
    assert isinstance(claim, Claimed)
    core.requeue("a")
    assert not core.claim_end("pi", "a", attempt=claim.attempt)
    assert not core.claim_end("pi", "a", attempt=claim.attempt)
    core.restart()
    assert not core.claim_end("pi", "a", attempt=claim.attempt)


def test_an_array_runs_from_its_first_claim_on_after_a_restart_as_before() -> None:
    core = CoreFleet()
    core.submit("a", array=2)
    core.claim("p1")
    assert core.job("a").state == states.RUNNING
    survives_a_restart(core)


# One name, claims and a connection


def test_a_claim_and_a_connection_of_one_name_at_once_leave_the_connection() -> None:
    core = CoreFleet()
    core.submit("a")
    core.turn(core.claiming("box"), registering("box"))
    claim = core.of(Claimed)[0]
    assert core.state("a") == states.PENDING
    core.beat("box", slots=Slots(batch_total=1))
    assert (core.where("a"), core.task("a").losses) == ("box", 1)
    assert core.claim_beat("box", "a") is None
    assert core.claim_beat("box", "a", claim.attempt) is None
    assert not core.claim_end("box", "a")
    assert not core.claim_end("box", "a", attempt=claim.attempt)
    core.start("a")
    core.wait(2 * LEASE_S)
    assert core.state("a") == states.RUNNING


def test_a_connection_and_a_claim_of_one_name_at_once_refuse_the_claim() -> None:
    core = CoreFleet()
    core.submit("a")
    core.turn(registering("box"), core.claiming("box"))
    assert len(core.of(Refuse)) == 1
    assert not core.fleet.workers["box"].only_claims
    survives_a_restart(core)


def test_what_was_claimed_and_is_then_reported_on_a_connection_is_bound_by_no_lease_any_more() -> None:
    core = CoreFleet()
    core.submit("a", job_tier="evaluation")
    claim = core.claim("box")
    assert isinstance(claim, Claimed)
    core.register("box", capabilities(), holds=holding(("a", claim.attempt)), slots=1)
    assert (core.state("a"), core.task("a").losses) == (states.RUNNING, 0)
    survives_a_restart(core)
    core.wait(2 * LEASE_S)
    assert core.state("a") == states.RUNNING
    core.leave("box")
    core.wait(121)
    assert core.state("a") == states.PENDING


# Manifests


def test_a_job_that_is_inserted_and_claimed_at_once_is_the_machines() -> None:
    core = CoreFleet()
    core.turn(core.following(entry("a")), core.claiming("pi"))
    assert (core.of(Claimed)[0].job_id, core.state("a")) == ("a", states.ASSIGNED)


def test_a_job_that_is_inserted_and_cancelled_at_once_is_cancelled_and_can_be_requeued() -> None:
    core = CoreFleet()
    core.turn(core.following(entry("a")), core.cancellation("a"))
    assert (core.state("a"), core.fleet.jobs) == (states.CANCELLED, {})
    assert core.follow(entry("a")) == {"a": "unchanged"}
    core.requeue("a")
    assert core.queue() == ["a"]


def test_needs_that_change_before_a_claim_in_one_batch_count_and_after_it_do_not() -> None:
    core = CoreFleet()
    core.follow(entry("a"))
    core.turn(core.following(entry("a", min_cpu_cores=9)), core.claiming("pi"))
    assert "needs 9 cores" in core.of(NothingToClaim)[0].reason
    core.turn(core.following(entry("a", min_cpu_cores=2)), core.claiming("pi"), core.following(entry("a")))
    assert core.free("pi")[0] == 2000
    survives_a_restart(core)


def ended_and_requeued(*, manifest_first: bool) -> tuple[CoreFleet, ManifestApplied]:
    """The job has left memory; it is requeued in the batch of a manifest that changes it."""
    core = CoreFleet()
    core.worker("w")
    core.follow(entry("a"))
    core.start("a")
    core.end("a", "failed")
    core.drain("w")
    manifest, requeue = core.following(entry("a", priority=7)), core.requeueing("a")
    core.turn(*([manifest, requeue] if manifest_first else [requeue, manifest]))
    return core, manifest


def test_a_job_that_is_requeued_before_a_manifest_in_one_batch_is_changed_by_it() -> None:
    core, _ = ended_and_requeued(manifest_first=False)
    assert changes(core) == [{"a": "updated"}]
    assert core.job("a").terms.priority == 7
    survives_a_restart(core)


def test_a_job_that_is_requeued_after_a_manifest_in_one_batch_is_changed_by_the_next() -> None:
    core, _ = ended_and_requeued(manifest_first=True)
    assert changes(core) == [{"a": "unchanged"}]
    assert (core.queue(), core.job("a").terms.priority) == (["a"], 0)
    assert core.follow(entry("a", priority=7)) == {"a": "updated"}


def test_a_job_that_is_cancelled_before_a_manifest_in_one_batch_is_not_changed_by_it() -> None:
    core = CoreFleet()
    core.follow(entry("a"))
    core.turn(core.cancellation("a"), core.following(entry("a", priority=7), entry("b")))
    assert changes(core) == [{"a": "unchanged", "b": "inserted"}]
    assert (core.state("a"), core.job("a").terms.priority) == (states.CANCELLED, 0)


def test_a_manifest_that_changes_a_job_and_one_that_changes_it_back_leave_it_as_it_was() -> None:
    core = CoreFleet()
    core.follow(entry("a", priority=3), entry("b"))
    before = core.job("a")
    core.turn(
        core.following(entry("a", min_cpu_cores=70), entry("b")), core.following(entry("a", priority=3), entry("b"))
    )
    assert [one["a"] for one in changes(core)] == ["updated", "updated"]
    assert (core.job("a"), core.queue()) == (before, ["a", "b"])
    survives_a_restart(core)


def test_a_job_that_changes_while_its_old_process_is_stopped_waits_for_it_and_then_gets_what_it_needs_now() -> None:
    core = CoreFleet()
    core.worker("w", cores=8)
    core.follow(entry("a", min_cpu_cores=2))
    core.start("a")
    core.turn(core.requeueing("a"), core.following(entry("a", min_cpu_cores=5)))
    assert (core.state("a"), core.free("w")[0]) == (states.PENDING, 6000)
    survives_a_restart(core)
    core.end("a", "cancelled")
    assert (core.where("a"), core.free("w")[0]) == ("w", 3000)


def test_a_claimed_job_that_changes_while_it_is_cancelled_keeps_its_old_holding_until_its_end() -> None:
    core = CoreFleet()
    core.follow(entry("a", min_cpu_cores=2))
    core.claim("pi")
    core.turn(core.cancellation("a"), core.following(entry("a", min_cpu_cores=4)))
    core.turn(core.requeueing("a"), core.following(entry("a", min_cpu_cores=4)))
    assert core.free("pi")[0] == 2000
    assert isinstance(core.claim("pi"), NothingToClaim)
    core.claim_end("pi", "a", "failed")
    assert isinstance(core.claim("pi"), Claimed)
    assert core.free("pi")[0] == 0


def test_of_many_that_bring_the_same_files_one_says_where_they_are_likely_to_be_needed() -> None:
    core = CoreFleet()
    core.worker("box", gpus=1)
    core.start(core.submit(gpu_count=1))
    core.turn(*[submission(1000 + number, f"s{number}", gpu_count=1, snapshot_id="0" * 64) for number in range(5)])
    (hint,) = core.of(HintSnapshot)
    assert (hint.worker_id, hint.task_id) == ("box", "s0")
