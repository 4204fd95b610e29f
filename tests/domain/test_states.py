"""The table of moves is the whole truth about a task's life."""

import pytest

from ostler.domain.errors import IllegalMove
from ostler.domain.states import LIVE, MOVES, STATES, STATUS, TERMINAL, move

LIFE = {
    "pending": {"assigned", "running", "succeeded", "failed", "cancelled", "unschedulable"},
    "assigned": {"running", "pending", "orphaned", "succeeded", "failed", "cancelled"},
    "running": {"pending", "orphaned", "succeeded", "failed", "cancelled"},
    "orphaned": {"running", "assigned", "pending", "succeeded", "failed", "cancelled"},
    "succeeded": {"pending"},
    "failed": {"pending"},
    "cancelled": {"pending"},
    "unschedulable": {"pending"},
}
"""Written out a second time, from the protocol: a move that appears in the code alone was not agreed on."""

PAIRS = [(old, new) for old in LIFE for new in LIFE]


def test_every_state_is_live_or_terminal_and_none_is_both() -> None:
    assert set(STATES) == set(LIFE)
    assert set(LIVE) | set(TERMINAL) == set(LIFE)
    assert not set(LIVE) & set(TERMINAL)


@pytest.mark.parametrize(("old", "new"), [pair for pair in PAIRS if pair[1] in LIFE[pair[0]]])
def test_a_legal_move_gives_the_new_state_and_says_what_causes_it(old: str, new: str) -> None:
    assert move("t1", old, new) == new
    assert MOVES[old][new]


@pytest.mark.parametrize(("old", "new"), [pair for pair in PAIRS if pair[1] not in LIFE[pair[0]]])
def test_an_illegal_move_raises_and_names_the_task_and_both_states(old: str, new: str) -> None:
    with pytest.raises(IllegalMove, match=rf"t1.*{old}.*{new}"):
        move("t1", old, new)


def test_a_terminal_state_is_left_by_a_requeue_alone() -> None:
    for state in TERMINAL:
        assert MOVES[state] == {"pending": "requeued by an operator"}


def test_an_illegal_move_is_a_bug_and_not_an_error_of_the_user() -> None:
    from ostler.domain.errors import OstlerError

    assert not issubclass(IllegalMove, OstlerError)


def test_every_state_has_a_status_in_the_training_apis_spelling() -> None:
    assert set(STATUS) == set(STATES)
    assert set(STATUS.values()) == {
        "pending",
        "claimed",
        "running",
        "completed",
        "failed",
        "cancelled",
        "unschedulable",
    }
    assert STATUS["assigned"] == "claimed"
    assert STATUS["orphaned"] == "running"
    assert STATUS["succeeded"] == "completed"
