"""Those sent ahead, one behind another: each holds nothing, and gets the room of the one before it in one move.

The room follows the chain whatever was decided about a member meanwhile: its worker may have begun it already.
"""

from collections.abc import Iterator

from ostler.core.fleet import Attempt, Fleet
from ostler.core.holding import NOTHING


def follow(fleet: Fleet, before: Attempt, attempt: Attempt) -> None:
    """From now on it waits for the end of that one, which nobody follows yet."""
    before.follower, attempt.after = attempt, before
    fleet.ahead_on[attempt.worker_id] = fleet.ahead_on.get(attempt.worker_id, 0) + 1


def hand_over(fleet: Fleet, attempt: Attempt) -> Attempt:
    """Its processes are gone: what it held is its follower's."""
    follower = attempt.follower
    assert follower is not None
    follower.held, follower.will = attempt.held, None
    attempt.held, attempt.will = NOTHING, follower.held
    follower.assigned = attempt.assigned  # of the slots that its worker told of, it has that one's
    _cut(fleet, attempt, follower)
    fleet.set_counted(follower, follower.phase != "lapsed")
    fleet.touch_attempt(follower)
    return follower


def close_gap(fleet: Fleet, attempt: Attempt) -> None:
    """It will not begin: whoever waits for it waits for the one before it."""
    before, follower = attempt.after, attempt.follower
    assert before is not None
    _cut(fleet, before, attempt)
    if follower is not None:
        _cut(fleet, attempt, follower)
        follow(fleet, before, follower)


def _cut(fleet: Fleet, before: Attempt, attempt: Attempt) -> None:
    before.follower = attempt.after = None
    left = fleet.ahead_on[attempt.worker_id] - 1
    if left:
        fleet.ahead_on[attempt.worker_id] = left
    else:
        del fleet.ahead_on[attempt.worker_id]


def behind(attempt: Attempt) -> Iterator[Attempt]:
    """All that wait for it, the next first."""
    follower = attempt.follower
    while follower is not None:
        yield follower
        follower = follower.follower
