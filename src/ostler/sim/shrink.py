"""From a plan that breaks something to a small one that breaks the same: parts are taken out as long as it does."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from ostler.domain.quota import Quota
from ostler.domain.scheduling import HOLD_AFTER_S
from ostler.sim.campaign import run_plan
from ostler.sim.plan import Deed, Plan, PlannedJob, PlannedMachine, Weather
from ostler.sim.world import World

MOST_RUNS = 2000
_NAMES = re.compile(r"\b[0-9a-f]{16}\b|\b[jwp]\d+(\.\d+)?\b|\d+(\.\d+)?")

T = TypeVar("T", Deed, PlannedJob, PlannedMachine)
Run = Callable[[Plan], World]


class Regression(msgspec.Struct, omit_defaults=True):
    """What was found once, and must not be found again."""

    found: str
    """In which seed."""
    violation: str
    plan: Plan


def violation_of(plan: Plan, run: Run = run_plan) -> str:
    """What it breaks, without the names and numbers that differ from run to run; empty: nothing."""
    try:
        run(plan)
    except Exception as error:
        return f"{type(error).__name__}: {_NAMES.sub('#', str(error)).splitlines()[0]}"
    return ""


def shrunk(plan: Plan, run: Run = run_plan, most_runs: int = MOST_RUNS) -> Plan:
    """A plan from which nothing more can be taken; the same, if it breaks nothing."""
    wanted, runs = violation_of(plan, run), 0
    smaller = True
    while wanted and smaller:
        smaller = False
        for candidate in _smaller(plan):
            runs += 1
            if runs > most_runs:
                return plan
            if violation_of(candidate, run) == wanted:
                plan, smaller = candidate, True
                break
    return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    """The largest cuts first: whatever is taken out early need not be run again and again."""
    replace = msgspec.structs.replace
    for kind in dict.fromkeys(deed.what for deed in plan.deeds):
        yield replace(plan, deeds=[deed for deed in plan.deeds if deed.what != kind])
    yield from (replace(plan, jobs=jobs) for jobs in _without_some(plan.jobs))
    yield from (replace(plan, deeds=deeds) for deeds in _without_some(plan.deeds))
    yield from (replace(plan, machines=machines) for machines in _without_some(plan.machines) if machines)
    yield from (replace(plan, weather=weather) for weather in _fairer(plan.weather))
    usual: dict[str, object] = {"quota": Quota(), "hold_after_s": HOLD_AFTER_S, "batch": 0, "failing": 0.0}
    for name, value in usual.items():
        if getattr(plan, name) != value:
            yield replace(plan, **{name: value})
    yield from _plainer(plan)


def _without_some(parts: list[T]) -> Iterator[list[T]]:
    """Without a half, a quarter, …, without one."""
    size = len(parts) // 2 or len(parts)
    while size:
        for begin in range(0, len(parts), size):
            yield parts[:begin] + parts[begin + size :]
        size //= 2


def _fairer(weather: Weather) -> Iterator[Weather]:
    for name in ("lose", "duplicate", "slow"):
        if getattr(weather, name):
            yield msgspec.structs.replace(weather, **{name: 0.0})
    if not weather.in_order:
        yield msgspec.structs.replace(weather, in_order=True)


def _plainer(plan: Plan) -> Iterator[Plan]:
    """The same jobs with fewer needs, and machines that do less."""
    for number, job in enumerate(plan.jobs):
        plain = type(job.spec)()
        for name in job.spec.__struct_fields__:
            default = getattr(plain, name)
            if name not in ("id", "command") and getattr(job.spec, name) != default:
                spec = msgspec.structs.replace(job.spec, **{name: default})
                jobs = [*plan.jobs[:number], msgspec.structs.replace(job, spec=spec), *plan.jobs[number + 1 :]]
                yield msgspec.structs.replace(plan, jobs=jobs)
    for number, machine in enumerate(plan.machines):
        if machine.real or machine.ahead:
            less = msgspec.structs.replace(machine, real=False, ahead=0)
            machines = [*plan.machines[:number], less, *plan.machines[number + 1 :]]
            yield msgspec.structs.replace(plan, machines=machines)


def keep(regression: Regression, folder: Path) -> Path:
    """As a file that a test replays."""
    words = re.sub(r"[^a-z]+", "-", regression.violation.lower()).strip("-")[:60].rstrip("-")
    path = folder / f"{words}-{regression.plan.seed}.json"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(regression), indent=1) + b"\n")
    return path


def kept(folder: Path) -> dict[str, Regression]:
    paths = sorted(folder.glob("*.json"))
    return {path.stem: msgspec.json.decode(path.read_bytes(), type=Regression) for path in paths}
