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
    """A queue that has grown by many jobs: those are there to stay for a while, and are not walked from now on. The
    collector walks 200,000 of them in 0.2 s."""

    def __init__(self) -> None:
        self._settled = 0

    def seen(self, jobs: int) -> None:
        """So many are in memory."""
        if jobs > self._settled + MANY:
            gc.collect()  # what is garbage by now would stay for ever; all that is walked has come since the last time
            gc.freeze()
            self._settled = jobs
        self._settled = min(self._settled, jobs)


def settle() -> None:
    """What is here now stays: it is not walked again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, OLDER, OLDEST)
