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


def test_a_queue_that_has_grown_by_many_is_walked_no_more() -> None:
    growth = Growth()
    growth.seen(MANY)
    assert gc.get_freeze_count() == 0
    queued = [Circle() for _ in range(MANY + 1)]
    growth.seen(len(queued))
    assert gc.get_freeze_count() > MANY
    walked = {id(one) for one in gc.get_objects()}
    assert not any(id(one) in walked for one in queued)


def test_what_was_garbage_when_it_had_grown_is_gone() -> None:
    gc.disable()
    try:
        for _ in range(50):
            Circle()
        Growth().seen(MANY + 1)
        gc.unfreeze()
        assert not [one for one in gc.get_objects() if isinstance(one, Circle)]
    finally:
        gc.enable()


def test_a_queue_that_shrank_and_grows_again_is_looked_at_again() -> None:
    growth = Growth()
    growth.seen(3 * MANY)
    gc.unfreeze()
    growth.seen(3 * MANY)
    assert gc.get_freeze_count() == 0
    growth.seen(0)
    growth.seen(MANY + 1)
    assert gc.get_freeze_count() > 0
