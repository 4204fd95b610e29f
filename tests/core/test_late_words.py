"""What comes late, twice or from the wrong side, and must change nothing: each of these once did."""

import json

import msgspec
import pytest
from tests.core.core_fleet import CoreFleet, holding, submission

from ostler.core.events import TaskEnded
from ostler.domain.errors import BadInput
from ostler.domain.job import ERRORS_TOLD, decode_spec
from ostler.domain.labels import parse_constraint
from ostler.domain.quota import Quota, Quotas
from ostler.domain.worker import Capabilities
from ostler.wire import messages


def result(core: CoreFleet, worker: str, task: str, state: str, attempt: str = "") -> TaskEnded:
    return TaskEnded(worker_id=worker, session=core.session(worker), task_id=task, attempt=attempt, state=state)


def preempted_gang() -> tuple[CoreFleet, str, str]:
    core = CoreFleet()
    core.worker("a", gpus=1, vram=24)
    core.worker("b", gpus=1, vram=24)
    core.submit("gang", node_count=2, gpu_count=1, preemptible=True)
    core.start("gang.0", "gang.1")
    where, attempt = core.where("gang.0"), core.attempt("gang.0")
    core.submit("high", gpu_count=1, priority=5)
    return core, where, attempt


def test_a_late_success_of_a_preempted_gangs_member_counts_for_nothing() -> None:
    core, where, old = preempted_gang()
    core.beat(where, holds=[])
    core.turn(result(core, where, "gang.0", "succeeded", old))
    assert core.state("gang.0") == "pending"


def test_a_late_cancelled_of_a_preempted_task_does_not_cancel_it() -> None:
    core = CoreFleet()
    core.worker("box", gpus=1, vram=24)
    core.start(core.submit("low", gpu_count=1, preemptible=True))
    old = core.attempt("low")
    core.submit("high", gpu_count=1, priority=5)
    core.beat("box", holds=[])
    core.turn(result(core, "box", "low", "cancelled", old))
    assert core.state("low") == "pending"


def test_a_result_without_an_attempt_does_not_mean_room_that_is_kept_for_a_job() -> None:
    core = CoreFleet()
    core.worker("box", gpus=2, vram=48)
    for name in ("one", "two"):
        core.start(core.submit(name, gpu_count=1, preemptible=True))
    core.submit("high", gpu_count=2, priority=5)
    core.end("one", "cancelled")
    core.turn(result(core, "box", "high", "succeeded"))
    core.end("two", "cancelled")
    assert core.where("high") == "box"


def test_a_preemptor_whose_victims_machine_dies_looks_for_other_victims() -> None:
    core = CoreFleet()
    core.worker("a", gpus=1, vram=24)
    core.start(core.submit("first", gpu_count=1, preemptible=True))
    core.submit("high", gpu_count=1, priority=5)
    core.leave("a")
    core.worker("b", gpus=1, vram=24)
    assert core.where("high") == "b"
    assert core.fleet.room_makers == {}


def test_a_gang_counts_whole_against_a_quota_and_an_attempt_of_a_dead_machine_not_at_all() -> None:
    core = CoreFleet()
    core.fleet.set_quotas(Quotas(default=Quota(running_jobs=1)))
    core.worker("a")
    core.worker("b")
    core.submit("gang", node_count=2)
    assert core.where("gang.0") == ""
    job = core.submit("job")
    core.start(job)
    gone = core.where(job)
    core.leave(gone)
    core.wait(31)
    assert core.where(job) not in ("", gone)


def test_one_that_was_taken_for_lost_and_told_to_end_does_not_cancel_its_task_by_saying_so_twice() -> None:
    core = CoreFleet()
    core.worker("box", slots=1)
    core.start(core.submit("job", max_attempts=3))
    attempt = core.attempt("job")
    core.fleet.workers["box"].draining = True  # or it would be given back at once
    core.beat("box", [])
    assert core.state("job") == "pending"
    core.beat("box", holding(("job", attempt)))
    assert core.cancelled() == [("box", attempt)]
    for _ in range(2):
        core.turn(result(core, "box", "job", "cancelled", attempt))
    assert core.state("job") == "pending"


def test_a_job_may_stand_before_what_it_waits_for_in_one_submit() -> None:
    core = CoreFleet()
    both = submission(1, "last", depends_on=["first"])
    both.jobs += submission(2, "first").jobs
    core.turn(both)
    assert core.states("last", "first") == ["pending", "pending"]


def test_a_job_that_is_requeued_as_it_ends_takes_nobody_along() -> None:
    core = CoreFleet()
    core.worker("box")
    core.start(core.submit("first"))
    core.submit("last", depends_on=["first"])
    ended = result(core, "box", "first", "succeeded", core.attempt("first"))
    core.turn(ended, core.requeueing("first"))
    assert core.state("last") == "pending"


def test_a_finished_members_value_survives_a_restart_of_the_hub() -> None:
    core = CoreFleet()
    core.worker("a")
    core.worker("b")
    core.submit("gang", node_count=2)
    core.start("gang.0", "gang.1")
    core.end("gang.0", result=b"value")
    name, attempt = core.where("gang.1"), core.attempt("gang.1")
    core.restart()
    core.register(name, slots=1)
    core.end("gang.1", attempt=attempt, worker=name)
    assert core.task("gang.0").result == b"value"


def test_names_and_numbers_without_end_are_no_danger() -> None:
    core = CoreFleet()
    core.worker("box")
    core.turn(result(core, "box", "x." + "9" * 5000, "succeeded", "a"))
    for _ in range(1100):
        core.fleet.workers["box"].faults += 1
    core.start(core.submit("job"))
    core.end("job", "returned", fault="worker")
    assert core.fleet.workers["box"].cooling
    frame = {"type": "job_result", "payload": {"task_id": "t", "state": "failed", "exit_code": 2**70}}
    assert isinstance(messages.decode(json.dumps(frame), messages.FROM_WORKER)[0], messages.MalformedFrame)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"devices": [{"index": index} for index in range(2000)]}, Capabilities)
    with pytest.raises(BadInput):
        parse_constraint("a=b" + " " * 30_000 + "c", "labels")
    with pytest.raises(BadInput) as caught:
        decode_spec(json.dumps({f"unknown{number}": 1 for number in range(8000)}).encode())
    assert len(caught.value.errors) <= ERRORS_TOLD + 2
