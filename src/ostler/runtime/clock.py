"""Time, for whoever keeps to what was agreed with another machine, and for whoever looks at the times of files.

Standard library only: the supervisor imports this.
"""

import sys
import time

_CLOCK = time.CLOCK_BOOTTIME if sys.platform == "linux" else time.CLOCK_MONOTONIC


def also_asleep() -> float:
    """Seconds that also pass while the machine sleeps: what others count meanwhile. All its processes agree on it."""
    return time.clock_gettime(_CLOCK)


class Moment:
    """Now, to be compared later with the times of files, whose clock may be set meanwhile."""

    def __init__(self) -> None:
        self._wall, self._even = time.time(), also_asleep()

    def by_the_files(self) -> float:
        """When it was by their clock, however that has been set since: the earlier of two that are possible."""
        return min(self._wall, time.time() - (also_asleep() - self._even))
