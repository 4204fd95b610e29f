"""What the gateway has seen of a model. Kept by name: a changed recipe is still mostly the same model."""

import math

import msgspec

LEAST_LOAD_S = 5.0
"""The least that a load is taken to last while none was measured."""
FIRST_SERVE_S = 5.0
NEWEST_WEIGHS = 0.3
"""How much the newest measurement counts against all before it."""
RATE_FADES_S = 900.0
"""An arrival this long ago counts a third of one now."""
STEADY_S = 60.0
"""A process that was ready for so long had nothing wrong with its start."""
MAX_BACKOFF_S = 60.0


class LoadTimes(msgspec.Struct):
    """What outlives the gateway."""

    load_s: float
    places: dict[str, float] = {}


class Learnt(msgspec.Struct, eq=False):
    measured_load_s: float | None = None
    """From the decision to the ready process, those it displaced included: what a swap costs. None: never measured."""
    loaded_before: bool = False
    places: dict[str, float] = {}
    """The same where it was loaded: a disk may be slow, or the model there already."""
    serve_s: float = FIRST_SERVE_S
    failures: int = 0
    """Loads that failed and processes that died, in a row."""
    error: str = ""
    backoff_until: float = -math.inf
    """Until then it is not loaded, and nobody waits for it."""
    held_until: float = -math.inf
    """Until then it is not loaded, and those who want it wait."""
    last_rate: float = 0.0
    """Requests per second, as it was when the last one came."""
    last_arrival: float = 0.0

    def arrived(self, now: float, requests: int = 1) -> None:
        self.last_rate = self.rate(now) + requests / RATE_FADES_S
        self.last_arrival = now

    def rate(self, now: float) -> float:
        """Requests per second of late."""
        return self.last_rate * math.exp((self.last_arrival - now) / RATE_FADES_S)

    def loaded(self, seconds: float, place: str = "") -> None:
        before_s = self.measured_load_s if self.loaded_before and self.measured_load_s is not None else seconds
        self.measured_load_s = before_s + NEWEST_WEIGHS * (seconds - before_s)
        self.loaded_before = True
        if place:
            before = self.places.get(place, seconds)
            self.places[place] = before + NEWEST_WEIGHS * (seconds - before)

    @property
    def times(self) -> LoadTimes | None:
        if self.measured_load_s is None or not self.loaded_before:
            return None
        return LoadTimes(self.measured_load_s, dict(self.places))

    def know(self, times: LoadTimes) -> None:
        self.measured_load_s, self.places, self.loaded_before = times.load_s, dict(times.places), True

    def served(self, seconds: float) -> None:
        self.serve_s += NEWEST_WEIGHS * (seconds - self.serve_s)

    def forgive(self) -> None:
        """Another recipe, another chance."""
        self.failures, self.error, self.backoff_until = 0, "", -math.inf

    def failed(self, error: str, now: float) -> None:
        """The first failure may be chance; from the second in a row on each waits twice as long as the one before."""
        self.failures += 1
        self.error = error
        if self.failures > 1:
            self.backoff_until = now + min(MAX_BACKOFF_S, 2.0 ** min(self.failures - 2, 6))
