"""A steady stream of jobs of every kind. What it has in `acknowledged`, the hub has said yes to."""

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from chaos.diary import PROGRAM, Diary, call
from chaos.fleet import LIVE, ChaosFleet
from ostler.client.errors import BadInput
from ostler.client.functions import call_payload, spec_of
from ostler.domain.errors import OstlerError

ARRAY = 4
AGAIN_S = 0.2
LOOK_EVERY = 8
EVERY_KIND = {"short": 10.0, "array": 2.0, "call": 3.0, "long": 0.6, "leaves": 1.5, "alone": 0.4, "patient": 0.4}
"""How often each kind is drawn, beside the others."""


@dataclass(frozen=True)
class Sent:
    """One submit that was acknowledged."""

    id: str
    name: str
    kind: str

    def tasks(self) -> list[str]:
        return [f"{self.id}.{index}" for index in range(ARRAY)] if self.kind == "array" else [self.id]


@dataclass
class Terms:
    """How much there is to do, and what."""

    weights: dict[str, float] = field(default_factory=lambda: dict(EVERY_KIND))
    per_s: float = 10.0
    most_live: int = 60
    long_s: tuple[float, float] = (4.0, 15.0)


class Load:
    def __init__(self, fleet: ChaosFleet, diary: Diary, seed: int, terms: Terms | None = None) -> None:
        self.acknowledged: dict[str, Sent] = {}
        self.unanswered: set[str] = set()
        """Names of submits that were given up without an answer: they may be there or not."""
        self.refused: Counter[str] = Counter()
        self.longest_gap_s = 0.0
        self.failed: BaseException | None = None
        self._fleet = fleet
        self._diary = diary
        self._terms = terms or Terms()
        self._draw = random.Random(seed)
        self._numbers = itertools.count()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._makers: dict[str, Callable[[], dict[str, Any]]] = {
            "short": lambda: self._program(self._draw.uniform(0, 0.3)),
            "array": lambda: self._program(self._draw.uniform(0, 0.4), array=ARRAY),
            "call": lambda: self._call(self._draw.uniform(0, 0.2)),
            "long": lambda: self._program(self._long_s()),
            "leaves": lambda: self._program(self._draw.uniform(0, 0.3), leaves=True),
            "alone": lambda: self._program(self._long_s(), on_lost_contact="stop"),
            "patient": lambda: self._program(self._long_s(), job_tier="evaluation"),
        }

    def start(self) -> "Load":
        self._thread.start()
        return self

    def stop(self) -> None:
        """What was sent and not answered is not sent again."""
        self._stop.set()
        self._thread.join(120)
        if self.failed is not None:
            raise self.failed
        assert not self._thread.is_alive(), "the load does not stop"

    def submit(self, kind: str, **more: Any) -> Sent | None:
        """One more, insisted on until it is acknowledged; None: it was told to stop first."""
        name = f"{kind}-{next(self._numbers)}"
        spec = {**self._makers[kind](), "name": name, **more}
        begun = time.monotonic()
        while not self._stop.is_set():
            try:
                said = self._fleet.hub.submit(spec, key=f"chaos-{name}")
            except BadInput:
                raise
            except (OstlerError, OSError) as error:
                self.refused[type(error).__name__] += 1
                self._stop.wait(AGAIN_S)
                continue
            sent = Sent(said["id"], name, kind)
            self.acknowledged[sent.id] = sent
            self.longest_gap_s = max(self.longest_gap_s, time.monotonic() - begun)
            return sent
        self.unanswered.add(name)
        return None

    def _work(self) -> None:
        kinds, weights = zip(*self._terms.weights.items(), strict=True)
        try:
            while not self._stop.wait(self._draw.expovariate(self._terms.per_s)):
                self.submit(*self._draw.choices(kinds, weights))
                if len(self.acknowledged) % LOOK_EVERY == 0:
                    self._give_way()
        except BaseException as error:
            self.failed = error

    def _give_way(self) -> None:
        """A steady load is one that is done as fast as it comes."""
        while not self._stop.wait(AGAIN_S):
            try:
                jobs = self._fleet.hub.status()["jobs"]
            except (OstlerError, OSError):
                continue
            if sum(jobs[state] for state in LIVE) < self._terms.most_live:
                return

    def _long_s(self) -> float:
        return self._draw.uniform(*self._terms.long_s)

    def _program(self, seconds: float, leaves: bool = False, **more: Any) -> dict[str, Any]:
        env = self._diary.env(seconds, leaves)
        return {"command": ["sh", "-c", PROGRAM], "env": env, "max_attempts": 50, "min_cpu_cores": 0.5, **more}

    def _call(self, seconds: float) -> dict[str, Any]:
        payload = call_payload(call, (str(self._diary.folder), seconds), {})
        spec = spec_of(payload, {"min_cpu_cores": 0.5, "max_attempts": 50}, self._fleet.hub.put_blob)
        plain: dict[str, Any] = msgspec.to_builtins(spec)
        return plain
