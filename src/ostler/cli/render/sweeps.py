"""Sweeps on a terminal: the list, and one of them with its points and its picture."""

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ostler.cli.render.charts import BEST, Chart, Point, is_number
from ostler.cli.render.columns import Columns
from ostler.cli.render.parts import facts, heading, indented, plain, progress_bar, quiet, state_text
from ostler.cli.render.words import clean, counts_line, error_of, figure, setting, settings

Document = dict[str, Any]
BAR = 30
SHORT_BAR = 12
MOST_POINTS = 30
"""Rows of one sweep; --all lists every one."""
OWN_COLUMNS = ("", "job", "state", "worker", "error")
ORDER = ("completed", "running", "claimed", "pending")


def sweep_table(sweeps: list[Document]) -> RenderableType:
    if not sweeps:
        return quiet("no sweeps; a manifest makes them with [[sweeps]]")
    columns = ["sweep", "progress", "done", "failed", "metric", "best", "with"]
    grid = Columns(*columns, cut={"sweep": 16, "with": 24}, drop=("metric", "failed", "progress"), right=("failed",))
    for sweep in sweeps:
        counts, best = sweep["counts"], sweep["best"] or {}
        grid.add(
            plain(sweep["name"]),
            progress_bar(counts, SHORT_BAR),
            f"{counts.get('completed', 0)} of {sweep['total']}",
            _failures(counts),
            plain(sweep["metric"] or ""),
            figure(best["value"]) if best else "",
            settings(_named_first(best.get("hyper") or {}, sweep["name"])),
        )
    return grid


def _named_first(hyper: Document, name: str) -> Document:
    """What a sweep's name holds in braces is what it is about."""
    return dict(sorted(hyper.items(), key=lambda item: f"{{{item[0]}}}" not in name))


def _failures(counts: dict[str, int]) -> Text:
    number = counts.get("failed", 0) + counts.get("unschedulable", 0)
    return Text(str(number), "bold red") if number else quiet("–")


def sweep_screen(sweep: Document, *, every: bool = False) -> RenderableType:
    jobs = sorted(sweep["jobs"], key=lambda job: _rank(job, sweep["goal"]))
    swept, fixed = split_hyper(jobs)
    about = " ".join(clean(sweep[key]) for key in ("model", "mode") if sweep[key])
    parts: list[RenderableType] = [
        heading(sweep["name"]) + Text(f"  {about}"),
        indented(facts(_facts(sweep, swept, fixed))),
        Text(),
        _point_table(sweep, jobs if every else jobs[:MOST_POINTS], swept),
    ]
    if len(jobs) > MOST_POINTS and not every:
        parts.append(quiet(f"and {len(jobs) - MOST_POINTS} more; --all lists them"))
    if sweep["best"]:
        points = [Point(job["name"], _places(job, swept), job["status"], _result(job)) for job in jobs]
        parts += [Text(), Chart(swept, points, sweep["metric"], lower_is_better=sweep["goal"] == "min")]
    return Group(*parts)


def _facts(sweep: Document, swept: list[str], fixed: Document) -> Iterator[tuple[str, str | Text]]:
    yield "progress", progress_bar(sweep["counts"], BAR)
    yield "runs", counts_line(sweep["counts"], "completed")
    better = "lower" if sweep["goal"] == "min" else "higher"
    yield "metric", f"{sweep['metric']}, {better} is better" if sweep["metric"] else quiet("none reported")
    if best := sweep["best"]:
        at = settings({key: best["hyper"][key] for key in swept if key in best["hyper"]})
        yield "best", f"{figure(best['value'])} with {at}" if at else figure(best["value"])
    yield "fixed", settings(fixed)


def split_hyper(jobs: list[Document]) -> tuple[list[str], Document]:
    """The parameters that differ between the points, and those that all share with their value."""
    keys = list(dict.fromkeys(key for job in jobs for key in job["hyper"]))
    swept = [key for key in keys if len({_place(job, key) for job in jobs}) > 1]
    return swept, {key: jobs[0]["hyper"][key] for key in keys if key not in swept}


def _places(job: Document, swept: list[str]) -> tuple[Any, ...]:
    return tuple(_place(job, key) for key in swept)


def _place(job: Document, key: str) -> Any:
    """A number as it is, anything else as its text: so that it has a place on an axis or in a table."""
    value = job["hyper"].get(key, "–")
    return value if is_number(value) else setting(value)


def _result(job: Document) -> float | None:
    """What a run had reached when it failed is no result, and would bend every axis."""
    value: float | None = job["value"]
    return value if job["status"] == "completed" else None


def _point_table(sweep: Document, jobs: list[Document], swept: list[str]) -> RenderableType:
    metric = [_column(clean(sweep["metric"]), ())] if sweep["metric"] else []
    keys = [_column(clean(key), metric) for key in swept]
    error = ["error"] if any(job["reason"] for job in jobs) else []
    least = {"job": 12, "error": 16} | dict.fromkeys(keys, 6)
    drop = ("worker", "error", "job", *reversed(keys[2:]))
    grid = Columns("", "job", *keys, "state", *metric, "worker", *error, cut=least, drop=drop, right=metric)
    best = (sweep["best"] or {}).get("job_id")
    for job in jobs:
        grid.add(
            Text(*BEST) if job["job_id"] == best else Text(""),
            plain(job["name"]),
            *(setting(value) for value in _places(job, swept)),
            state_text(job["status"]),
            *([figure(job["value"]) if job["value"] is not None else ""] if metric else []),
            plain(job["worker"] or ""),
            *(error_of(job) for _ in error),
        )
    return grid


def _column(name: str, others: tuple[str, ...] | list[str]) -> str:
    """A parameter may be called like a column that is there anyway."""
    return f"hyper {name}" if name in (*OWN_COLUMNS, *others) else name


def _rank(job: Document, goal: str) -> tuple[int, float, str]:
    """The best first, then what has not come that far."""
    value = _result(job)
    if value is not None:
        return (0, value if goal == "min" else -value, job["name"])
    return (1 + (ORDER.index(job["status"]) if job["status"] in ORDER else len(ORDER)), 0.0, job["name"])
