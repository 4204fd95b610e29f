"""How late the hub's event loop is: a timer that measures how long whatever was ready had to wait for its turn."""

import asyncio
import itertools
from bisect import bisect_left
from collections.abc import Iterator

from prometheus_client.core import HistogramMetricFamily, Metric

EVERY_S = 0.1
BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)


class Lag:
    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._total_s = 0.0

    def observe(self, late_s: float) -> None:
        self._counts[bisect_left(BOUNDS_S, late_s)] += 1
        self._total_s += late_s

    async def watch(self) -> None:
        """For as long as the hub runs."""
        clock = asyncio.get_running_loop().time
        while True:
            due = clock() + EVERY_S
            await asyncio.sleep(EVERY_S)
            self.observe(max(0.0, clock() - due))

    def collect(self) -> Iterator[Metric]:
        bounds = [*map(str, BOUNDS_S), "+Inf"]
        yield HistogramMetricFamily(
            "ostler_hub_loop_lag_seconds",
            "How late the event loop came to a timer, looked at ten times a second",
            buckets=list(zip(bounds, itertools.accumulate(self._counts), strict=True)),
            sum_value=self._total_s,
        )
