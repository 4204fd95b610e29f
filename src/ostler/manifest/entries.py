"""From the tables of a manifest to one entry per job: defaults laid under, sweeps expanded."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from ostler.manifest.keys import JOB_KEYS, SWEEP_KEYS, Checked, check
from ostler.manifest.locate import Path
from ostler.manifest.problems import Problems

MAX_JOBS = 20_000
MERGED = ("hyper", "env")
"""Tables that are merged key by key."""


class Entry(msgspec.Struct):
    path: Path
    values: dict[str, Any]
    own: frozenset[str]
    """The keys that were written here, not in [defaults]."""
    spoiled: set[str]
    sweep: str = ""

    def get(self, key: str) -> Any:
        return self.values.get(key, JOB_KEYS[key].default)

    def place(self, key: str) -> Path:
        """Where the value of this key was written."""
        if key in self.own:
            return (*self.path, key)
        return ("defaults", key) if key in self.values else self.path


def entries_of(tables: Mapping[str, Any], problems: Problems) -> Iterator[Entry]:
    """One for each job, in the order of the file. All sweeps are counted before the first is expanded."""
    defaults = check(tables.get("defaults", {}), ("defaults",), JOB_KEYS, problems)
    jobs = [
        _over(defaults, check(table, ("jobs", index), JOB_KEYS, problems), ("jobs", index))
        for index, table in enumerate(tables.get("jobs", []))
    ]
    sweeps = [
        _over(defaults, check(table, ("sweeps", index), JOB_KEYS | SWEEP_KEYS, problems), ("sweeps", index))
        for index, table in enumerate(tables.get("sweeps", []))
    ]
    whole_sweeps = [sweep for sweep in sweeps if _is_whole(sweep, problems)]
    room = MAX_JOBS - len(jobs)
    for sweep in whole_sweeps:
        room -= _size(sweep)
    if room < 0:
        problems.add((), f"it has over {MAX_JOBS} jobs, sweeps expanded; one manifest may have {MAX_JOBS}")
        return
    yield from jobs
    for sweep in whole_sweeps:
        yield from _points(sweep)


def _over(defaults: Checked, own: Checked, path: Path) -> Entry:
    values = defaults.values | own.values
    for key in MERGED:
        if key in values:
            values[key] = defaults.values.get(key, {}) | own.values.get(key, {})
    if "train_hosts" in values:
        values["train_hosts"] = sorted(values["train_hosts"])
    spoiled = own.spoiled | (defaults.spoiled - own.values.keys())
    return Entry(path, values, frozenset(own.values), spoiled)


def _is_whole(sweep: Entry, problems: Problems) -> bool:
    """It can be expanded."""
    if "name" not in sweep.spoiled and not sweep.get("name"):
        problems.add(sweep.path, 'needs a name for its jobs, such as "mlp-{lr}-{width}"')
    if sweep.spoiled & SWEEP_KEYS.keys():
        return False
    if ("grid" in sweep.values) == ("list" in sweep.values):
        problems.add(sweep.path, "needs either a grid or a list, and not both")
        return False
    return True


def _size(sweep: Entry) -> int:
    """Of how many jobs it is; far beyond the limit only that it is."""
    if "list" in sweep.values:
        return len(sweep.values["list"])
    size = 1
    for values in sweep.values["grid"].values():
        size = min(size * len(values), MAX_JOBS + 1)
    return size


def _points(sweep: Entry) -> Iterator[Entry]:
    """In the order of the file: the last key of a grid changes first."""
    values = {key: value for key, value in sweep.values.items() if key not in SWEEP_KEYS}
    grid = sweep.values.get("grid", {})
    points = sweep.values.get("list") or (
        dict(zip(grid, point, strict=True)) for point in itertools.product(*grid.values())
    )
    for point in points:
        hyper = sweep.get("hyper") | point
        yield Entry(sweep.path, values | {"hyper": hyper}, sweep.own, sweep.spoiled, sweep.get("name"))
