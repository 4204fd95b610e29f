"""Traces of jobs: one line for each, read from CSV or drawn by a seed."""

import csv
import math
import random
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ostler.domain.errors import BadInput

NEEDED = ("submit", "duration", "gpus", "user")
OPTIONAL = ("cpus", "memory", "limit", "nodes", "priority", "name")
PROBLEMS_TOLD = 10
SIZES = ((1, 60), (2, 18), (4, 12), (8, 10))
"""GPUs of a drawn job, and how many of a hundred have so many."""
MEDIAN_S = 900.0
SPREAD = 1.4


class TracedJob(msgspec.Struct, frozen=True):
    """Times in seconds, memory in GiB."""

    submit: float
    duration: float
    gpus: int
    user: str
    cpus: float = 0.0
    memory: float = 0.0
    limit: float = 0.0
    """The run-time limit that the user gave; 0: none."""
    nodes: int = 1
    """Machines that it needs at once, each with so many GPUs."""
    priority: int = 0
    name: str = ""
    """Jobs of one name are of one kind: what they take is learnt."""


def read(path: Path) -> list[TracedJob]:
    """The jobs of a CSV file whose first line names its columns; every mistake is told by its line."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file, restval="")
            columns = [name.strip() for name in rows.fieldnames or ()]
            rows.fieldnames = columns
            _must_have_columns(path, columns)
            return _jobs(path, rows)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}", [("trace", "cannot be read")]) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path}: is not CSV: {error}", [("trace", "is not CSV")]) from None


def _must_have_columns(path: Path, columns: list[str]) -> None:
    missing = [name for name in NEEDED if name not in columns]
    unknown = [name for name in columns if name not in (*NEEDED, *OPTIONAL)]
    told = [f"has no column {name}" for name in missing] + [f"has an unknown column {name!r}" for name in unknown]
    if told:
        known = f"needed are {', '.join(NEEDED)}; there may be {', '.join(OPTIONAL)}"
        raise BadInput(f"{path}: {'; '.join(told)}; {known}", [("trace", what) for what in told])


def _jobs(path: Path, rows: "csv.DictReader[str]") -> list[TracedJob]:
    jobs: list[TracedJob] = []
    wrong: list[str] = []
    for row in rows:
        given = {name: text.strip() for name, text in row.items() if isinstance(text, str) and text.strip()}
        try:
            job = msgspec.convert(given, TracedJob, strict=False)
            _must_make_sense(job)
        except (msgspec.ValidationError, ValueError) as error:
            wrong.append(f"line {rows.line_num}: {error}")
            if len(wrong) == PROBLEMS_TOLD:
                break
        else:
            jobs.append(job)
    if wrong:
        raise BadInput(f"{path}:\n" + "\n".join(wrong), [("trace", what) for what in wrong])
    if not jobs:
        raise BadInput(f"{path}: has no jobs", [("trace", "has no jobs")])
    return sorted(jobs, key=lambda job: job.submit)


def _must_make_sense(job: TracedJob) -> None:
    amounts = {name: getattr(job, name) for name in ("submit", "duration", "gpus", "cpus", "memory", "limit")}
    for name, amount in amounts.items():
        if not 0 <= amount < math.inf:
            raise ValueError(f"{name} is {amount}; it must be 0 or more")
    if job.nodes < 1:
        raise ValueError(f"nodes is {job.nodes}; it must be 1 or more")


def drawn(seed: int, count: int, gpus: int, *, users: int = 8, load: float = 1.0, largest: int = 8) -> list[TracedJob]:
    return list(stream(seed, count, gpus, users=users, load=load, largest=largest))


def stream(
    seed: int, count: int, gpus: int, *, users: int = 8, load: float = 1.0, largest: int = 8
) -> Iterator[TracedJob]:
    """Jobs as a fleet of so many GPUs sees them in about: most are small and short, some are neither; some users submit
    far more than others. With a load of 1 they ask for just what the fleet can do."""
    rng = random.Random(f"jobs {seed}")
    sizes = [size for size, _ in SIZES if size <= max(1, largest)]
    shares = [share for size, share in SIZES if size <= max(1, largest)]
    mean_work = _mean_s() * sum(size * share for size, share in zip(sizes, shares, strict=True)) / sum(shares)
    between_s = mean_work / (load * gpus)
    names, eagerness = [f"user{number:02d}" for number in range(users)], [2.0**-number for number in range(users)]
    now = 0.0
    for _ in range(count):
        now += rng.expovariate(1 / between_s)
        duration = min(86_400.0, max(1.0, rng.lognormvariate(math.log(MEDIAN_S), SPREAD)))
        limit = 600.0 * math.ceil(duration * rng.uniform(1.0, 4.0) / 600.0)
        yield TracedJob(
            submit=round(now, 3),
            duration=round(duration, 3),
            gpus=rng.choices(sizes, shares)[0],
            user=rng.choices(names, eagerness)[0],
            limit=min(limit, 7 * 86_400.0),
        )


def _mean_s() -> float:
    return MEDIAN_S * math.exp(SPREAD**2 / 2)


def write(jobs: list[TracedJob], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow((*NEEDED, *OPTIONAL))
        for job in jobs:
            lines.writerow([getattr(job, name) for name in (*NEEDED, *OPTIONAL)])
