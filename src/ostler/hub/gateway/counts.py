"""What the gateway has done for each model, as Prometheus wants it."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ostler.gateway import control
from ostler.hub.gateway.instances import READY, Instances


class Counts:
    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str]] = Counter()
        self._queue_s: dict[str, float] = {}
        self._loads: Counter[str] = Counter()
        self._load_s: dict[str, float] = {}
        self._tokens: Counter[tuple[str, str]] = Counter()
        self._evictions: Counter[tuple[str, str]] = Counter()

    def ended(self, done: control.Done) -> None:
        if not done.gave_back:
            self._requests[done.model, str(done.status)] += 1
            self._tokens[done.model, "prompt"] += done.prompt_tokens
            self._tokens[done.model, "completion"] += done.completion_tokens

    def refused(self, model: str, status: int) -> None:
        self._requests[model, str(status)] += 1

    def waited(self, model: str, seconds: float) -> None:
        self._queue_s[model] = self._queue_s.get(model, 0.0) + seconds

    def loaded(self, model: str, seconds: float) -> None:
        self._loads[model] += 1
        self._load_s[model] = self._load_s.get(model, 0.0) + seconds

    def stopped(self, model: str, reason: str) -> None:
        self._evictions[model, reason] += 1

    def collect(self, instances: Instances, queued: Counter[str]) -> Iterator[Metric]:
        requests = CounterMetricFamily("ostler_model_requests", "Requests answered", labels=["model", "status"])
        tokens = CounterMetricFamily("ostler_model_tokens", "Tokens that servers told of", labels=["model", "kind"])
        evictions = CounterMetricFamily("ostler_model_evictions", "Processes stopped", labels=["model", "reason"])
        for family, counted in ((requests, self._requests), (tokens, self._tokens), (evictions, self._evictions)):
            for (model, what), number in counted.items():
                family.add_metric([model, what], number)
            yield family
        waited = CounterMetricFamily("ostler_model_queue_seconds", "Time that requests waited", labels=["model"])
        loading = CounterMetricFamily("ostler_model_load_seconds", "Time that loads took", labels=["model"])
        loads = CounterMetricFamily("ostler_model_loads", "Loads that became ready", labels=["model"])
        for plain, seconds in ((waited, self._queue_s), (loading, self._load_s), (loads, self._loads)):
            for model, amount in seconds.items():
                plain.add_metric([model], amount)
            yield plain
        in_flight = GaugeMetricFamily("ostler_model_in_flight", "Requests being served", labels=["model"])
        for one in instances.by_job.values():
            if one.phase == READY:
                in_flight.add_metric([one.model], one.in_flight)
        yield in_flight
        waiting = GaugeMetricFamily("ostler_model_queued", "Requests that wait", labels=["model"])
        for model, number in queued.items():
            waiting.add_metric([model], number)
        yield waiting
