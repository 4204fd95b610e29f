"""Several events about one thing at the same instant: each is taken as if it had come alone, one after the other."""

import pytest
from tests.core.portrait import difference, portrait
from tests.core.yard import Yard, capabilities, entry, holding, submission

from ostler.core.claims import LEASE_S
from ostler.core.effects import Answer, Beaten, Claimed, Followed, HintSnapshot, NothingToClaim, Refuse
from ostler.core.events import ClaimBeat, ManifestApplied, WorkerRegistered
from ostler.domain import states
from ostler.domain.worker import Slots


def beating(name: str, task_id: str, attempt: str = "") -> ClaimBeat:
    return ClaimBeat(ref=900, worker_id=name, task_id=task_id, attempt=attempt)


def registering(name: str, session: int = 77) -> WorkerRegistered:
    return WorkerRegistered(worker_id=name, session=session, capabilities=capabilities())


def changes(yard: Yard) -> list[dict[str, str]]:
    return [{line.job_id: line.change for line in answer.lines} for answer in yard.of(Followed)]


def survives_a_restart(yard: Yard) -> None:
    kept = portrait(yard.restored(), yard.now)
    for part, mine in portrait(yard.fleet, yard.now).items():
        assert not difference(mine, kept[part]), part


# Claims


def test_a_job_claimed_and_cancelled_at_once_tells_its_machine_at_its_first_heartbeat() -> None:
    yard = Yard()
    yard.submit("a", min_cpu_cores=4)
    said = yard.turn(yard.claiming("pi"), yard.cancellation("a"), beating("pi", "a"))
    kinds = [type(one) for one in said if isinstance(one, (Claimed, Answer, Beaten))]
    assert (kinds, yard.of(Beaten)[0].cancel) == ([Claimed, Answer, Beaten], True)
    assert (yard.state("a"), yard.free("pi")[0]) == (states.CANCELLED, 0)
    survives_a_restart(yard)
    assert yard.claim_end("pi", "a", "failed")
    assert yard.free("pi")[0] == 4000


def test_a_job_claimed_and_requeued_at_once_waits_for_the_end_of_that_claim() -> None:
    yard = Yard()
    yard.submit("a")
    yard.turn(yard.claiming("p1"), yard.requeueing("a"), yard.claiming("p2"))
    assert [type(one) for one in yard.heard if isinstance(one, (Claimed, NothingToClaim))] == [Claimed, NothingToClaim]
    survives_a_restart(yard)
    yard.wait(LEASE_S + 1)
    assert (yard.queue(), yard.task("a").losses) == (["a"], 0)


def test_a_claim_that_is_complete_in_the_batch_of_its_claim_counts() -> None:
    yard = Yard()
    yard.submit("a")
    yard.turn(yard.claiming("pi"), yard.claim_ending("pi", "a"), yard.claim_ending("pi", "a"))
    assert len(yard.of(Answer)) == 2
    assert yard.state("a") == states.SUCCEEDED
    assert yard.fleet.jobs == {}


@pytest.mark.parametrize("state", ["succeeded", "failed"])
def test_an_end_at_the_instant_at_which_the_lease_ends_still_counts(state: str) -> None:
    yard = Yard()
    yard.submit("a")
    yard.claim("pi")
    yard.now += LEASE_S
    assert yard.claim_end("pi", "a", state)
    assert (yard.state("a"), yard.task("a").losses) == (state, 0)


def test_a_heartbeat_at_the_instant_at_which_the_lease_ends_renews_it() -> None:
    yard = Yard()
    yard.submit("a")
    yard.claim("pi")
    yard.now += LEASE_S
    assert yard.claim_beat("pi", "a") is False
    yard.wait(LEASE_S - 1)
    assert yard.state("a") == states.RUNNING
    yard.wait(1)
    assert yard.state("a") == states.PENDING


def test_an_end_after_the_lease_has_ended_is_refused_however_often_it_is_said() -> None:
    yard = Yard()
    yard.submit("a")
    claim = yard.claim("pi")
    assert isinstance(claim, Claimed)
    yard.wait(LEASE_S)
    both = [yard.claim_ending("pi", "a", attempt=claim.attempt) for _ in range(2)]
    yard.turn(*both)
    assert len(yard.of(Refuse)) == 2
    assert not yard.claim_end("pi", "a", attempt=claim.attempt)
    assert yard.queue() == ["a"]


def test_a_success_that_was_refused_is_refused_again_when_its_answer_got_lost() -> None:
    """The hub has given the job to others since: a machine must not believe that its model was taken."""
    yard = Yard()
    yard.submit("a")
    claim = yard.claim("pi")
    assert isinstance(claim, Claimed)
    yard.requeue("a")
    assert not yard.claim_end("pi", "a", attempt=claim.attempt)
    assert not yard.claim_end("pi", "a", attempt=claim.attempt)
    yard.restart()
    assert not yard.claim_end("pi", "a", attempt=claim.attempt)


def test_an_array_runs_from_its_first_claim_on_after_a_restart_as_before() -> None:
    yard = Yard()
    yard.submit("a", array=2)
    yard.claim("p1")
    assert yard.job("a").state == states.RUNNING
    survives_a_restart(yard)


# One name, claims and a connection


def test_a_claim_and_a_connection_of_one_name_at_once_leave_the_connection() -> None:
    yard = Yard()
    yard.submit("a")
    yard.turn(yard.claiming("box"), registering("box"))
    claim = yard.of(Claimed)[0]
    assert yard.state("a") == states.PENDING
    yard.beat("box", slots=Slots(batch_total=1))
    assert (yard.where("a"), yard.task("a").losses) == ("box", 1)
    assert yard.claim_beat("box", "a") is None
    assert yard.claim_beat("box", "a", claim.attempt) is None
    assert not yard.claim_end("box", "a")
    assert not yard.claim_end("box", "a", attempt=claim.attempt)
    yard.start("a")
    yard.wait(2 * LEASE_S)
    assert yard.state("a") == states.RUNNING


def test_a_connection_and_a_claim_of_one_name_at_once_refuse_the_claim() -> None:
    yard = Yard()
    yard.submit("a")
    yard.turn(registering("box"), yard.claiming("box"))
    assert len(yard.of(Refuse)) == 1
    assert not yard.fleet.workers["box"].only_claims
    survives_a_restart(yard)


def test_what_was_claimed_and_is_then_reported_on_a_connection_is_bound_by_no_lease_any_more() -> None:
    yard = Yard()
    yard.submit("a", job_tier="evaluation")
    claim = yard.claim("box")
    assert isinstance(claim, Claimed)
    yard.register("box", capabilities(), holds=holding(("a", claim.attempt)), slots=1)
    assert (yard.state("a"), yard.task("a").losses) == (states.RUNNING, 0)
    survives_a_restart(yard)
    yard.wait(2 * LEASE_S)
    assert yard.state("a") == states.RUNNING
    yard.leave("box")
    yard.wait(121)
    assert yard.state("a") == states.PENDING


# Manifests


def test_a_job_that_is_inserted_and_claimed_at_once_is_the_machines() -> None:
    yard = Yard()
    yard.turn(yard.following(entry("a")), yard.claiming("pi"))
    assert (yard.of(Claimed)[0].job_id, yard.state("a")) == ("a", states.ASSIGNED)


def test_a_job_that_is_inserted_and_cancelled_at_once_is_cancelled_and_can_be_requeued() -> None:
    yard = Yard()
    yard.turn(yard.following(entry("a")), yard.cancellation("a"))
    assert (yard.state("a"), yard.fleet.jobs) == (states.CANCELLED, {})
    assert yard.follow(entry("a")) == {"a": "unchanged"}
    yard.requeue("a")
    assert yard.queue() == ["a"]


def test_needs_that_change_before_a_claim_in_one_batch_count_and_after_it_do_not() -> None:
    yard = Yard()
    yard.follow(entry("a"))
    yard.turn(yard.following(entry("a", min_cpu_cores=9)), yard.claiming("pi"))
    assert "needs 9 cores" in yard.of(NothingToClaim)[0].reason
    yard.turn(yard.following(entry("a", min_cpu_cores=2)), yard.claiming("pi"), yard.following(entry("a")))
    assert yard.free("pi")[0] == 2000
    survives_a_restart(yard)


def ended_and_requeued(*, manifest_first: bool) -> tuple[Yard, ManifestApplied]:
    """The job has left memory; it is requeued in the batch of a manifest that changes it."""
    yard = Yard()
    yard.worker("w")
    yard.follow(entry("a"))
    yard.start("a")
    yard.end("a", "failed")
    yard.drain("w")
    manifest, requeue = yard.following(entry("a", priority=7)), yard.requeueing("a")
    yard.turn(*([manifest, requeue] if manifest_first else [requeue, manifest]))
    return yard, manifest


def test_a_job_that_is_requeued_before_a_manifest_in_one_batch_is_changed_by_it() -> None:
    yard, _ = ended_and_requeued(manifest_first=False)
    assert changes(yard) == [{"a": "updated"}]
    assert yard.job("a").terms.priority == 7
    survives_a_restart(yard)


def test_a_job_that_is_requeued_after_a_manifest_in_one_batch_is_changed_by_the_next() -> None:
    yard, _ = ended_and_requeued(manifest_first=True)
    assert changes(yard) == [{"a": "unchanged"}]
    assert (yard.queue(), yard.job("a").terms.priority) == (["a"], 0)
    assert yard.follow(entry("a", priority=7)) == {"a": "updated"}


def test_a_job_that_is_cancelled_before_a_manifest_in_one_batch_is_not_changed_by_it() -> None:
    yard = Yard()
    yard.follow(entry("a"))
    yard.turn(yard.cancellation("a"), yard.following(entry("a", priority=7), entry("b")))
    assert changes(yard) == [{"a": "unchanged", "b": "inserted"}]
    assert (yard.state("a"), yard.job("a").terms.priority) == (states.CANCELLED, 0)


def test_a_manifest_that_changes_a_job_and_one_that_changes_it_back_leave_it_as_it_was() -> None:
    yard = Yard()
    yard.follow(entry("a", priority=3), entry("b"))
    before = yard.job("a")
    yard.turn(
        yard.following(entry("a", min_cpu_cores=70), entry("b")), yard.following(entry("a", priority=3), entry("b"))
    )
    assert [one["a"] for one in changes(yard)] == ["updated", "updated"]
    assert (yard.job("a"), yard.queue()) == (before, ["a", "b"])
    survives_a_restart(yard)


def test_a_job_that_changes_while_its_old_process_is_stopped_waits_for_it_and_then_gets_what_it_needs_now() -> None:
    yard = Yard()
    yard.worker("w", cores=8)
    yard.follow(entry("a", min_cpu_cores=2))
    yard.start("a")
    yard.turn(yard.requeueing("a"), yard.following(entry("a", min_cpu_cores=5)))
    assert (yard.state("a"), yard.free("w")[0]) == (states.PENDING, 6000)
    survives_a_restart(yard)
    yard.end("a", "cancelled")
    assert (yard.where("a"), yard.free("w")[0]) == ("w", 3000)


def test_a_claimed_job_that_changes_while_it_is_cancelled_keeps_its_old_holding_until_its_end() -> None:
    yard = Yard()
    yard.follow(entry("a", min_cpu_cores=2))
    yard.claim("pi")
    yard.turn(yard.cancellation("a"), yard.following(entry("a", min_cpu_cores=4)))
    yard.turn(yard.requeueing("a"), yard.following(entry("a", min_cpu_cores=4)))
    assert yard.free("pi")[0] == 2000
    assert isinstance(yard.claim("pi"), NothingToClaim)
    yard.claim_end("pi", "a", "failed")
    assert isinstance(yard.claim("pi"), Claimed)
    assert yard.free("pi")[0] == 0


def test_of_many_that_bring_the_same_files_one_says_where_they_are_likely_to_be_needed() -> None:
    yard = Yard()
    yard.worker("box", gpus=1)
    yard.start(yard.submit(gpu_count=1))
    yard.turn(*[submission(1000 + number, f"s{number}", gpu_count=1, snapshot_id="0" * 64) for number in range(5)])
    (hint,) = yard.of(HintSnapshot)
    assert (hint.worker_id, hint.task_id) == ("box", "s0")
