"""What the hub's collector is spared."""

import gc
from collections.abc import Iterator

import pytest

from ostler.hub.collecting import MANY, Growth


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    gc.unfreeze()
    gc.collect()
    yield
    gc.unfreeze()


class Circle:
    def __init__(self) -> None:
        self.itself = self


def walked() -> int:
    return sum(isinstance(one, Circle) for one in gc.get_objects())


def test_a_long_queue_is_walked_no_more() -> None:
    growth = Growth()
    queued = [Circle() for _ in range(MANY)]
    growth.seen(len(queued), came=MANY)
    assert gc.get_freeze_count() == 0
    queued += [Circle() for _ in range(10)]
    growth.seen(len(queued), came=MANY + 10)
    assert gc.get_freeze_count() > MANY and walked() == 0


def test_nor_is_one_that_others_leave_while_as_many_come() -> None:
    growth, came = Growth(), 3 * MANY
    queued = [Circle() for _ in range(came)]
    growth.seen(len(queued), came)
    for _ in range(5 * MANY // 100):
        queued[:100] = []
        queued += [Circle() for _ in range(100)]
        came += 100
        growth.seen(len(queued), came)
    assert walked() <= MANY + 100


def test_what_was_garbage_when_it_had_grown_is_gone() -> None:
    gc.disable()
    try:
        for _ in range(50):
            Circle()
        Growth().seen(MANY + 1, came=MANY + 1)
        gc.unfreeze()
        assert not walked()
    finally:
        gc.enable()


def test_what_has_become_garbage_since_is_found_when_the_queue_is_short_again() -> None:
    growth = Growth()
    queued = [Circle() for _ in range(MANY + 1)]
    growth.seen(len(queued), came=len(queued))
    del queued
    gc.collect()
    growth.seen(10, came=MANY + 20)
    gc.unfreeze()
    assert not walked()
