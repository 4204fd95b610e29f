"""One fault tried on one fleet under load: what was done, how often, and which promises held."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from chaos import program
from chaos.diary import Diary
from chaos.fleet import ChaosFleet, chaos_fleet
from chaos.judge import Allowed, Judge, Promise
from chaos.load import Load, Terms
from chaos.wire import Wire, wire


class Trial(msgspec.Struct):
    name: str
    about: str
    seed: int
    tried: dict[str, int] = {}
    figures: dict[str, float] = {}
    promises: list[Promise] = []
    at: str = ""
    seconds: float = 0.0
    skipped: str = ""
    """Why it could not be tried here."""
    broke: str = ""
    """What kept it from being judged to its end."""

    @property
    def sound(self) -> bool:
        return not self.broke and all(promise.held for promise in self.promises)

    def count(self, what: str, times: int = 1) -> None:
        self.tried[what] = self.tried.get(what, 0) + times

    def promise(self, text: str, looked_at: int, broken: list[str]) -> None:
        self.promises.append(Promise(text, looked_at, broken))


class Ground(msgspec.Struct):
    """Where a trial takes place, and how long it may be."""

    folder: Path
    seed: int
    scale: float = 1.0
    """1: minutes for all of them together."""
    kills: int = 0
    """Of the hub, and as many of workers; 0: as many as fit."""
    tell: Callable[[str], None] = print

    def times(self, usual: int) -> int:
        return max(1, round(usual * self.scale))

    def draw(self) -> random.Random:
        return random.Random(self.seed)


Fault = Callable[[Ground, Trial], None]


class FleetUnderLoad:
    """A fleet, the load on it, and what its tasks wrote."""

    def __init__(self, fleet: ChaosFleet, load: Load, diary: Diary, cable: Wire | None) -> None:
        self.fleet = fleet
        self.load = load
        self.diary = diary
        self._wire = cable

    @property
    def wire(self) -> Wire:
        assert self._wire is not None, "this fleet has no wire"
        return self._wire


@contextmanager
def fleet_under_load(
    ground: Ground,
    trial: Trial,
    near: tuple[str, ...],
    far: tuple[str, ...] = (),
    *,
    times: str = program.HURRIED,
    terms: Terms | None = None,
    allowed: Allowed | None = None,
    disks: dict[str, Path] | None = None,
) -> Iterator[FleetUnderLoad]:
    """Everything runs; whatever was done meanwhile is judged at the end."""
    with ExitStack() as stack:
        cable = stack.enter_context(wire(ground.seed)) if far else None
        made = stack.enter_context(chaos_fleet(ground.folder, near, far, times, cable, disks=disks))
        diary = Diary(ground.folder / "diary")
        load = Load(made, diary, ground.seed, terms).start()
        yield FleetUnderLoad(made, load, diary, cable)
        load.stop()
        ground.tell(f"{len(load.acknowledged):,} jobs acknowledged; waiting for the last to end")
        trial.figures["the last ended after, s"] = round(made.settle(ground.tell), 1)
        judge = Judge(made, load, diary, allowed)
        try:
            judge.look(*near, *far)
        finally:
            trial.promises += judge.found
        _figures(trial, made, load)


def _figures(trial: Trial, made: ChaosFleet, load: Load) -> None:
    kinds = Counter(sent.kind for sent in load.acknowledged.values())
    trial.figures |= {
        "jobs acknowledged": len(load.acknowledged),
        "tasks": sum(len(sent.tasks()) for sent in load.acknowledged.values()),
        "submits sent again": sum(load.refused.values()),
        "longest wait for an acknowledgement, s": round(load.longest_gap_s, 2),
        "hub starts": made.hub_starts,
        "hub memory at its peak, MiB": round(made.peak_rss_mib),
    }
    trial.figures |= {f"jobs of kind {kind}": count for kind, count in sorted(kinds.items())}
