"""Those sent ahead, one behind another: each holds nothing, and gets the room of the one before it in one move.

The room follows the chain whatever was decided about a member meanwhile: its worker may have begun it already.
"""

from collections.abc import Iterator

from ostler.core.attempt import Line
from ostler.core.fleet import Attempt, Fleet
from ostler.core.holding import NOTHING


def follow(fleet: Fleet, before: Attempt, attempt: Attempt) -> None:
    """From now on it waits for the end of that one, which nobody follows yet."""
    line = before.line = before.line or Line(before)
    attempt.line, line.last = line, attempt
    line.waiting += 1
    _link(fleet, before, attempt)


def end_of(head: Attempt) -> tuple[int, Attempt]:
    """How many wait behind it, and the last of them."""
    return (0, head) if head.line is None else (head.line.waiting, head.line.last)


def hand_over(fleet: Fleet, attempt: Attempt) -> Attempt:
    """Its processes are gone: what it held is its follower's."""
    follower = attempt.follower
    assert follower is not None
    is_other = follower.will is not attempt.held
    follower.held, follower.will = attempt.held, None
    attempt.held, attempt.will = NOTHING, follower.held
    follower.assigned = attempt.assigned  # of the slots that its worker told of, it has that one's
    _cut(fleet, attempt, follower)
    _leave_line(attempt, follower)
    fleet.set_counted(follower, follower.phase != "lapsed")
    if is_other:  # else its row says already what it has now
        fleet.touch_attempt(follower)
    return follower


def close_gap(fleet: Fleet, attempt: Attempt) -> None:
    """It will not begin: whoever waits for it waits for the one before it."""
    before, follower = attempt.after, attempt.follower
    assert before is not None
    _cut(fleet, before, attempt)
    if follower is not None:
        _cut(fleet, attempt, follower)
        _link(fleet, before, follower)
    _leave_line(attempt, before)


def _link(fleet: Fleet, before: Attempt, attempt: Attempt) -> None:
    before.follower, attempt.after = attempt, before
    fleet.ahead_on[attempt.worker_id] = fleet.ahead_on.get(attempt.worker_id, 0) + 1


def _cut(fleet: Fleet, before: Attempt, attempt: Attempt) -> None:
    before.follower = attempt.after = None
    left = fleet.ahead_on[attempt.worker_id] - 1
    if left:
        fleet.ahead_on[attempt.worker_id] = left
    else:
        del fleet.ahead_on[attempt.worker_id]


def _leave_line(attempt: Attempt, neighbour: Attempt) -> None:
    """One less waits. Where that leaves one alone there is no line any more."""
    line, attempt.line = attempt.line, None
    assert line is not None
    line.waiting -= 1
    if line.last is attempt:
        line.last = neighbour
    if not line.waiting:
        line.last.line = None


def behind(attempt: Attempt) -> Iterator[Attempt]:
    """All that wait for it, the next first."""
    follower = attempt.follower
    while follower is not None:
        yield follower
        follower = follower.follower
