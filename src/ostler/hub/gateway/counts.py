"""What the gateway has done for each model, as Prometheus wants it."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from ostler.gateway import control
from ostler.hub.gateway.instances import READY, Instances

BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0)


class Histogram:
    """Seconds, by one label: of the gateway's that is the model."""

    def __init__(self, name: str, what: str, label: str = "model", bounds_s: tuple[float, ...] = BOUNDS_S) -> None:
        self._name = name
        self._what = what
        self._label = label
        self._bounds_s = bounds_s
        self._buckets: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def observe(self, of: str, seconds: float) -> None:
        buckets = self._buckets.get(of)
        if buckets is None:
            buckets = self._buckets[of] = [0] * (len(self._bounds_s) + 1)
        buckets[bisect_left(self._bounds_s, seconds)] += 1
        self._sums[of] = self._sums.get(of, 0.0) + seconds

    def count(self, of: str) -> int:
        return sum(self._buckets.get(of, ()))

    def collect(self) -> Metric:
        family = HistogramMetricFamily(self._name, self._what, labels=[self._label])
        bounds = [*map(str, self._bounds_s), "+Inf"]
        for of, buckets in self._buckets.items():
            counted = [(bound, float(count)) for bound, count in zip(bounds, accumulate(buckets), strict=True)]
            family.add_metric([of], counted, self._sums[of])
        return family


class Counts:
    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str]] = Counter()
        self._seconds = {
            "queue": Histogram("ostler_model_queue_seconds", "From a request's arrival to its server"),
            "load": Histogram("ostler_model_load_seconds", "From a load's beginning to a model that is ready"),
            "first_byte": Histogram("ostler_model_first_byte_seconds", "From a request's arrival to its answer's"),
        }
        self._tokens: Counter[tuple[str, str]] = Counter()
        self._evictions: Counter[tuple[str, str]] = Counter()

    def ended(self, done: control.Done) -> None:
        self._requests[done.model, str(done.status)] += 1
        self._seconds["queue"].observe(done.model, done.queue_s)
        if done.first_byte_s:
            self._seconds["first_byte"].observe(done.model, done.first_byte_s)
        self._tokens[done.model, "prompt"] += done.prompt_tokens
        self._tokens[done.model, "completion"] += done.completion_tokens

    def refused(self, model: str, status: int) -> None:
        self._requests[model, str(status)] += 1

    def loaded(self, model: str, seconds: float) -> None:
        self._seconds["load"].observe(model, seconds)

    def stopped(self, model: str, reason: str) -> None:
        self._evictions[model, reason] += 1

    def swaps(self, model: str) -> dict[str, int]:
        """How often it came and how often it went since the hub started."""
        stops = sum(number for (name, _), number in self._evictions.items() if name == model)
        return {"loads": self._seconds["load"].count(model), "stops": stops}

    def collect(self, instances: Instances, queued: Counter[str]) -> Iterator[Metric]:
        requests = CounterMetricFamily("ostler_model_requests", "Requests answered", labels=["model", "status"])
        tokens = CounterMetricFamily("ostler_model_tokens", "Tokens that servers told of", labels=["model", "kind"])
        evictions = CounterMetricFamily("ostler_model_evictions", "Processes stopped", labels=["model", "reason"])
        for family, counted in ((requests, self._requests), (tokens, self._tokens), (evictions, self._evictions)):
            for (model, what), number in counted.items():
                family.add_metric([model, what], number)
            yield family
        for histogram in self._seconds.values():
            yield histogram.collect()
        in_flight = GaugeMetricFamily("ostler_model_in_flight", "Requests being served", labels=["model"])
        for one in instances.by_job.values():
            if one.phase == READY:
                in_flight.add_metric([one.model], one.in_flight)
        yield in_flight
        waiting = GaugeMetricFamily("ostler_model_queued", "Requests that wait", labels=["model"])
        for model, number in queued.items():
            waiting.add_metric([model], number)
        yield waiting
