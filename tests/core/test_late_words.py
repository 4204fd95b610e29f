"""What comes late, twice or from the wrong side, and must change nothing: each of these once did."""

import json

import msgspec
import pytest
from tests.core.yard import Yard, holding, submission

from ostler.core.events import TaskEnded
from ostler.domain.errors import BadInput
from ostler.domain.job import ERRORS_TOLD, decode_spec
from ostler.domain.labels import parse_constraint
from ostler.domain.quota import Quota, Quotas
from ostler.domain.worker import Capabilities
from ostler.wire import messages


def result(yard: Yard, worker: str, task: str, state: str, attempt: str = "") -> TaskEnded:
    return TaskEnded(worker_id=worker, session=yard.session(worker), task_id=task, attempt=attempt, state=state)


def preempted_gang() -> tuple[Yard, str, str]:
    yard = Yard()
    yard.worker("a", gpus=1, vram=24)
    yard.worker("b", gpus=1, vram=24)
    yard.submit("gang", node_count=2, gpu_count=1, preemptible=True)
    yard.start("gang.0", "gang.1")
    where, attempt = yard.where("gang.0"), yard.attempt("gang.0")
    yard.submit("high", gpu_count=1, priority=5)
    return yard, where, attempt


def test_a_late_success_of_a_preempted_gangs_member_counts_for_nothing() -> None:
    yard, where, old = preempted_gang()
    yard.beat(where, holds=[])
    yard.turn(result(yard, where, "gang.0", "succeeded", old))
    assert yard.state("gang.0") == "pending"


def test_a_late_cancelled_of_a_preempted_task_does_not_cancel_it() -> None:
    yard = Yard()
    yard.worker("box", gpus=1, vram=24)
    yard.start(yard.submit("low", gpu_count=1, preemptible=True))
    old = yard.attempt("low")
    yard.submit("high", gpu_count=1, priority=5)
    yard.beat("box", holds=[])
    yard.turn(result(yard, "box", "low", "cancelled", old))
    assert yard.state("low") == "pending"


def test_a_result_without_an_attempt_does_not_mean_room_that_is_kept_for_a_job() -> None:
    yard = Yard()
    yard.worker("box", gpus=2, vram=48)
    for name in ("one", "two"):
        yard.start(yard.submit(name, gpu_count=1, preemptible=True))
    yard.submit("high", gpu_count=2, priority=5)
    yard.end("one", "cancelled")
    yard.turn(result(yard, "box", "high", "succeeded"))
    yard.end("two", "cancelled")
    assert yard.where("high") == "box"


def test_a_preemptor_whose_victims_machine_dies_looks_for_other_victims() -> None:
    yard = Yard()
    yard.worker("a", gpus=1, vram=24)
    yard.start(yard.submit("first", gpu_count=1, preemptible=True))
    yard.submit("high", gpu_count=1, priority=5)
    yard.leave("a")
    yard.worker("b", gpus=1, vram=24)
    assert yard.where("high") == "b"
    assert yard.fleet.room_makers == {}


def test_a_gang_counts_whole_against_a_quota_and_an_attempt_of_a_dead_machine_not_at_all() -> None:
    yard = Yard()
    yard.fleet.set_quotas(Quotas(default=Quota(running_jobs=1)))
    yard.worker("a")
    yard.worker("b")
    yard.submit("gang", node_count=2)
    assert yard.where("gang.0") == ""
    job = yard.submit("job")
    yard.start(job)
    gone = yard.where(job)
    yard.leave(gone)
    yard.wait(31)
    assert yard.where(job) not in ("", gone)


def test_one_that_was_taken_for_lost_and_told_to_end_does_not_cancel_its_task_by_saying_so_twice() -> None:
    yard = Yard()
    yard.worker("box", slots=1)
    yard.start(yard.submit("job", max_attempts=3))
    attempt = yard.attempt("job")
    yard.fleet.workers["box"].draining = True  # or it would be given back at once
    yard.beat("box", [])
    assert yard.state("job") == "pending"
    yard.beat("box", holding(("job", attempt)))
    assert yard.cancelled() == [("box", attempt)]
    for _ in range(2):
        yard.turn(result(yard, "box", "job", "cancelled", attempt))
    assert yard.state("job") == "pending"


def test_a_job_may_stand_before_what_it_waits_for_in_one_submit() -> None:
    yard = Yard()
    both = submission(1, "last", depends_on=["first"])
    both.jobs += submission(2, "first").jobs
    yard.turn(both)
    assert yard.states("last", "first") == ["pending", "pending"]


def test_a_job_that_is_requeued_as_it_ends_takes_nobody_along() -> None:
    yard = Yard()
    yard.worker("box")
    yard.start(yard.submit("first"))
    yard.submit("last", depends_on=["first"])
    ended = result(yard, "box", "first", "succeeded", yard.attempt("first"))
    yard.turn(ended, yard.requeueing("first"))
    assert yard.state("last") == "pending"


def test_a_finished_members_value_survives_a_restart_of_the_hub() -> None:
    yard = Yard()
    yard.worker("a")
    yard.worker("b")
    yard.submit("gang", node_count=2)
    yard.start("gang.0", "gang.1")
    yard.end("gang.0", result=b"value")
    name, attempt = yard.where("gang.1"), yard.attempt("gang.1")
    yard.restart()
    yard.register(name, slots=1)
    yard.end("gang.1", attempt=attempt, worker=name)
    assert yard.task("gang.0").result == b"value"


def test_names_and_numbers_without_end_are_no_danger() -> None:
    yard = Yard()
    yard.worker("box")
    yard.turn(result(yard, "box", "x." + "9" * 5000, "succeeded", "a"))
    for _ in range(1100):
        yard.fleet.workers["box"].faults += 1
    yard.start(yard.submit("job"))
    yard.end("job", "returned", fault="worker")
    assert yard.fleet.workers["box"].cooling
    frame = {"type": "job_result", "payload": {"task_id": "t", "state": "failed", "exit_code": 2**70}}
    assert isinstance(messages.decode(json.dumps(frame), messages.FROM_WORKER)[0], messages.MalformedFrame)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"devices": [{"index": index} for index in range(2000)]}, Capabilities)
    with pytest.raises(BadInput):
        parse_constraint("a=b" + " " * 30_000 + "c", "labels")
    with pytest.raises(BadInput) as caught:
        decode_spec(json.dumps({f"unknown{number}": 1 for number in range(8000)}).encode())
    assert len(caught.value.errors) <= ERRORS_TOLD + 2
