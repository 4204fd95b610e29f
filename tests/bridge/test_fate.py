"""What became of an attempt, from all that can be known of it."""

import pytest

from ostler.bridge.base import Ask, Fate, Sight
from ostler.bridge.fate import KILLED, Found, conclude, is_settled
from ostler.bridge.record import Exit, Record
from ostler.bridge.script import NOT_ITS_TURN
from ostler.runtime.base import Ended


def record(**more: object) -> Record:
    given: dict[str, object] = {"task_id": "t", "ask": Ask(node="n"), "job": "12", **more}
    return Record(**given)  # type: ignore[arg-type]


def end(of: Record, sight: Sight | None, found: Found) -> tuple[Ended, str]:
    return conclude("a", of, sight, found, "Slurm")


def over(fate: Fate = "exited", code: int | None = None, reason: str = "") -> Sight:
    return Sight(phase="over", fate=fate, exit_code=code, reason=reason)


BEGAN = Found(began=True)


def test_its_own_exit_code_counts_and_how_long_it_ran() -> None:
    ended, said = end(record(), over(code=0), Found(began=True, exit=Exit(7, 2.5)))
    assert (ended.exit_code, ended.ran_s, ended.error, ended.stopped, said) == (7, 2.5, "", "", "")
    assert end(record(), None, Found(began=True, exit=Exit(0, 1.0)))[0].exit_code == 0, "nobody knows the job any more"


def test_where_it_could_write_none_the_batch_system_s_counts() -> None:
    ended, _ = end(record(), over(code=0), BEGAN)
    assert (ended.exit_code, ended.error) == (0, "")
    assert end(record(), over(code=3), BEGAN)[0].exit_code == 3


def test_a_second_job_of_an_attempt_says_nothing_about_it() -> None:
    ended, _ = end(record(), over(code=NOT_ITS_TURN), BEGAN)
    assert "left no exit code" in ended.error


def test_what_never_began_is_nobody_s_success() -> None:
    ended, _ = end(record(), over(code=0), Found())
    assert "the bridge's folder must be there on the node" in ended.error
    ended, _ = end(record(), None, BEGAN)
    assert "not known there any more" in ended.error
    ended, _ = end(record(), over("lost", reason="NODE_FAIL"), BEGAN)
    assert ended.error == "the node of Slurm job 12 failed (NODE_FAIL)"


@pytest.mark.parametrize("code", [2, 126, 127])
def test_what_a_shell_says_that_did_not_find_the_script_is_not_taken_for_the_tasks_own_end(code: int) -> None:
    ended, _ = end(record(), over(code=code), Found())
    assert "the bridge's folder must be there on the node" in ended.error
    assert ended.exit_code == KILLED, "so that it is tried again elsewhere"


def test_what_a_node_that_is_taken_down_has_killed_is_lost_and_what_had_ended_before_is_not() -> None:
    lost = over("lost", reason="NODE_FAIL")
    assert "the node of Slurm job 12 failed" in end(record(), lost, Found(began=True, exit=Exit(143, 2.0)))[0].error
    ended, _ = end(record(), lost, Found(began=True, exit=Exit(0, 2.0)))
    assert (ended.exit_code, ended.error) == (0, "")


def test_what_was_told_to_end_ended_for_that_reason_whatever_else_is_said() -> None:
    stopped = record(stopped="cancel: no longer needed")
    assert end(stopped, over("cancelled"), Found())[0].exit_code == 143
    assert end(stopped, None, BEGAN)[0].exit_code == 137
    ended, said = end(stopped, over("out of time"), Found(began=True, exit=Exit(9, 1.0)))
    assert (ended.exit_code, ended.stopped, said) == (9, "cancel: no longer needed", "")
    assert end(record(), over(), Found(began=True, stopped="lost contact"))[0].stopped == "lost contact"


def test_time_that_is_over_is_its_budget_or_the_partition_s_limit() -> None:
    own = record(deadline_s=60.0, ask=Ask(node="n", limit_s=130.0))
    assert end(own, over("out of time"), BEGAN)[0].stopped == "max_runtime"
    short = record(deadline_s=7200.0, ask=Ask(node="n", limit_s=3600.0))
    ended, said = end(short, over("out of time"), Found(began=True, exit=Exit(143, 3600.0)))
    assert (ended.stopped, ended.error, ended.exit_code) == ("", "", 143)
    assert said == "Slurm job 12 was ended by Slurm: its time limit was over"


def test_memory_strangers_and_preemption() -> None:
    ended, said = end(record(ask=Ask(node="n", memory_mib=512)), over("out of memory"), BEGAN)
    assert (ended.exit_code, ended.error) == (137, "")
    assert "(512 MiB)" in said
    ended, said = end(record(), over("cancelled"), BEGAN)
    assert (ended.exit_code, said) == (143, "Slurm job 12 was cancelled there, by somebody else")
    assert end(record(), over("preempted"), BEGAN)[0].stopped.startswith("called back: ")


def test_only_an_end_that_should_have_left_a_code_is_waited_for() -> None:
    assert not is_settled(record(), over(), BEGAN)
    assert not is_settled(record(), None, Found())
    assert is_settled(record(), over(), Found(began=True, exit=Exit(0, 1.0)))
    assert is_settled(record(), over("out of memory"), BEGAN)
    assert is_settled(record(stopped="drain"), None, BEGAN)


def test_what_the_batch_system_could_not_go_on_with_is_handed_back_unless_it_had_ended_before() -> None:
    back = over("handed back", reason="its driver is gone")
    assert end(record(), back, Found(began=True, exit=Exit(137, 0.0)))[0].stopped == "called back: its driver is gone"
    ended, _ = end(record(), back, Found(began=True, exit=Exit(3, 1.0)))
    assert (ended.exit_code, ended.stopped, ended.error) == (3, "", "")
