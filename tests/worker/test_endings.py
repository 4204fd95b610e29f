"""From the end of a task's processes to its result: what the core waits for, and what it tells."""

import msgspec
import pytest
from tests.worker.test_core import do, ended, order, sent, worker

from ostler.runtime.base import Held
from ostler.wire.messages import Heartbeat
from ostler.worker.endings import COLLECT_TRIES, LONGEST_PAUSE_S, OUTPUT_TRIES
from ostler.worker.events import (
    OUTPUTS,
    VALUE,
    Acknowledged,
    Assigned,
    BeatDue,
    CheckpointBrought,
    CollectOutcome,
    ConnectionLost,
    ForgetTask,
    OutcomeCollected,
    ProcessEnded,
    TookBack,
)
from ostler.worker.orders import Facts

CUT = OutcomeCollected(attempt="a1", unreachable=True, lacking=OUTPUTS)
CODES = {"a1": 0, "a2": 3, "a3": 0}
FURTHER = msgspec.structs.replace(CUT, progressed=True)


def test_outputs_are_collected_of_a_success_and_a_checkpoint_of_anything_else() -> None:
    state = worker()
    do(state, Assigned(order("a1", outputs=["model.bin"])), Assigned(order("a2")))
    assert do(state, ended("a1")) == [CollectOutcome(task_id="job-a1", attempt="a1", outputs=("model.bin",))]
    assert do(state, ended("a2", 3)) == [CollectOutcome(task_id="job-a2", attempt="a2", succeeded=False)]


def test_nothing_is_collected_of_a_success_that_left_nothing_and_of_which_no_outputs_are_expected() -> None:
    state = worker()
    do(state, Assigned(order("a1")), Assigned(order("a2")), Assigned(order("a3", outputs=["model.bin"])))
    ends = {name: ProcessEnded(ended(name, code).end, nothing_to_bring=True) for name, code in CODES.items()}
    [result] = sent(do(state, ends["a1"]))
    assert (result.attempt, result.state, list(state.results)) == ("a1", "succeeded", ["a1"])
    assert do(state, ends["a2"]) == [CollectOutcome(task_id="job-a2", attempt="a2", succeeded=False)]
    assert do(state, ends["a3"]) == [CollectOutcome(task_id="job-a3", attempt="a3", outputs=("model.bin",))]


def test_outputs_of_a_task_that_was_taken_back_are_those_of_its_facts() -> None:
    state = worker()
    held = Held(attempt="a1", task_id="job-a1", started_at=1.0, ended=ended("a1").end)
    [wanted] = do(state, TookBack([(held, Facts(outputs=("x",)))]))
    assert wanted == CollectOutcome(task_id="job-a1", attempt="a1", outputs=("x",))


def test_a_success_is_told_with_its_artifact_its_value_and_its_metrics() -> None:
    state = worker()
    found = OutcomeCollected(attempt="a1", artifact_id="art", result_id="val", metrics={"loss": 0.5}, last_line="bye")
    [result] = sent(do(state, Assigned(order("a1")), ended("a1"), found))
    assert (result.state, result.error) == ("succeeded", "")
    assert (result.artifact_id, result.result_id, result.metrics) == ("art", "val", {"loss": 0.5})
    assert result.checkpoint_id == ""


@pytest.mark.parametrize(
    ("end", "state_told", "error", "metrics"),
    [
        ({"exit_code": 3}, "failed", "exit code 3: bye", {"loss": 0.5}),
        ({"exit_code": 139}, "failed", "exit code 139 (SIGSEGV)", {"loss": 0.5}),
        ({"exit_code": 143, "stopped": "max_runtime"}, "failed", "max_runtime", {"loss": 0.5}),
        ({"exit_code": 143, "stopped": "cancel: by ann"}, "cancelled", "by ann", {}),
        ({"exit_code": 143, "stopped": "drain"}, "returned", "the worker is shutting down", {}),
        ({"exit_code": 127, "error": "no program 'x'"}, "failed", "no program 'x'", {"loss": 0.5}),
    ],
)
def test_whatever_is_no_success_is_told_with_its_checkpoint(
    end: dict[str, object], state_told: str, error: str, metrics: dict[str, float]
) -> None:
    state = worker()
    found = OutcomeCollected(attempt="a1", checkpoint_id="chk", metrics={"loss": 0.5}, last_line="bye")
    [result] = sent(do(state, Assigned(order("a1")), ended("a1", **end), found))  # type: ignore[arg-type]
    assert (result.state, result.error, result.metrics) == (state_told, error, metrics)
    assert (result.checkpoint_id, result.artifact_id) == ("chk", "")


def test_what_a_prolog_said_comes_before_what_the_task_said_last() -> None:
    state = worker()
    found = OutcomeCollected(attempt="a1", said="the prolog failed", last_line="bye")
    [result] = sent(do(state, Assigned(order("a1")), ended("a1", 7), found))
    assert result.error == "the prolog failed"


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({}, "exit code 3; the epilog failed with exit code 4"),
        (
            {"lacked": "vram", "lacked_line": "CUDA"},
            "out of GPU memory (exit code 3): CUDA; the epilog failed with exit code 4",
        ),
    ],
)
def test_a_failed_command_and_a_failed_epilog_are_both_reasons_and_the_commands_comes_first(
    more: dict[str, str], error: str
) -> None:
    state = worker()
    said = "\nthe epilog failed with exit code 4"
    found = OutcomeCollected(attempt="a1", said=said, last_line="[ostler: the epilog failed with exit code 4]", **more)  # type: ignore[arg-type]
    [result] = sent(do(state, Assigned(order("a1")), ended("a1", 3), found))
    assert (result.error, result.exit_code) == (error, 3)


def test_a_failed_epilog_does_not_hide_that_the_run_time_budget_was_spent() -> None:
    state = worker()
    found = OutcomeCollected(attempt="a1", said="\nthe epilog failed with exit code 4")
    [result] = sent(do(state, Assigned(order("a1")), ended("a1", 143, stopped="max_runtime"), found))
    assert result.error == "max_runtime"


def test_a_checkpoint_is_told_with_every_heartbeat_and_with_the_result_if_no_later_one_was_brought() -> None:
    state = worker()
    do(state, Assigned(order("a1")), CheckpointBrought(attempt="a1", checkpoint="c1"))
    [beat] = sent(do(state, BeatDue()), Heartbeat)
    assert [task.checkpoint for task in beat.active_tasks] == ["c1"]
    [result] = sent(do(state, ended("a1", 1), OutcomeCollected(attempt="a1")))
    assert result.checkpoint_id == "c1"
    assert do(state, CheckpointBrought(attempt="a1", checkpoint="late")) == []


def test_outputs_are_tried_for_minutes_and_then_the_task_has_failed() -> None:
    state = worker()
    effects = do(state, Assigned(order("a1")), ended("a1"))
    pauses = []
    while isinstance(effects[0], CollectOutcome):
        pauses.append(effects[0].after_s)
        effects = do(state, CUT)
    assert len(pauses) == OUTPUT_TRIES > COLLECT_TRIES
    assert pauses[:3] == [0.0, 1.0, 2.0]
    assert max(pauses) <= LONGEST_PAUSE_S
    [result] = sent(effects)
    assert (result.state, result.error) == ("failed", "its outputs could not be brought to the hub")


def test_an_upload_that_gets_further_is_no_failed_try() -> None:
    state = worker()
    do(state, Assigned(order("a1")), ended("a1"))
    for _ in range(OUTPUT_TRIES - 1):
        [again] = do(state, CUT)
    assert isinstance(again, CollectOutcome)
    assert again.after_s > 0
    assert do(state, FURTHER) == [CollectOutcome(task_id="job-a1", attempt="a1")]
    assert isinstance(do(state, CUT)[0], CollectOutcome)


def test_tries_without_a_connection_do_not_count() -> None:
    state = worker()
    do(state, Assigned(order("a1")), ended("a1"), ConnectionLost())
    for _ in range(2 * OUTPUT_TRIES):
        assert do(state, CUT) == []
    assert state.endings["a1"].tries == 0


def test_a_value_that_cannot_be_brought_fails_the_task_and_a_log_does_not() -> None:
    for lacking, told in ((VALUE, ("failed", "its value could not be brought to the hub")), ("", ("succeeded", ""))):
        state = worker()
        do(state, Assigned(order("a1", metadata={"ostler.call": {"inline": ""}})), ended("a1"))
        cut = OutcomeCollected(attempt="a1", unreachable=True, lacking=lacking)
        [result] = sent(do(state, *[cut] * COLLECT_TRIES))
        assert (result.state, result.error) == told


@pytest.mark.parametrize(("exit_code", "error", "done"), [(0, "", True), (1, "", False), (0, "no output", False)])
def test_a_tasks_checkpoint_is_of_no_use_only_after_its_success(exit_code: int, error: str, done: bool) -> None:
    state = worker()
    do(state, Assigned(order("a1")), ended("a1", exit_code), OutcomeCollected(attempt="a1", error=error))
    acknowledged = Acknowledged(task_id="job-a1", attempt="a1")
    assert do(state, acknowledged) == [ForgetTask(task_id="job-a1", attempt="a1", done=done)]
