"""When Python looks for garbage in the hub: never in the midst of loading, and seldom in what lives long.

Most of what the hub makes dies by itself. What is left for the collector are circles among a few records; but to find
them it walks everything that may hold one, and the loop stands still meanwhile.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG = 20_000
"""New objects before the collector looks at them: a batch of jobs is not walked while it is being made."""
OLDER = 20
OLDEST = 50
MANY = 10_000
"""Jobs: a long queue, and as many as the collector may walk while there is one."""


@contextmanager
def paused() -> Iterator[None]:
    """While a long queue is read nothing of it is garbage."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Growth:
    """A long queue is there to stay for a while: what has joined it is not walked from then on. The collector walks
    200,000 jobs in 0.2 s."""

    def __init__(self) -> None:
        self._came = 0
        self._has_frozen = False

    def seen(self, jobs: int, came: int) -> None:
        """So many jobs are in memory, and so many have ever come."""
        if jobs > MANY and came > self._came + MANY:
            _settle()
            self._came, self._has_frozen = came, True
        elif self._has_frozen and jobs < MANY // 2:
            gc.unfreeze()  # whatever has become garbage meanwhile, of all that was there, is found
            _settle()
            self._has_frozen = False


def _settle() -> None:
    """What is garbage by now would stay for ever."""
    gc.collect()
    gc.freeze()


def settle() -> None:
    """What is here now stays: it is not walked again and again."""
    _settle()
    gc.set_threshold(YOUNG, OLDER, OLDEST)
