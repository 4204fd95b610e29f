"""Artifacts on a terminal: the list, one of them in full, and what became of several."""

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ostler.cli.render.columns import Columns
from ostler.cli.render.parts import facts, heading, indented, plain, quiet
from ostler.cli.render.words import clean, count, figure, handle, moment, since

Document = dict[str, Any]
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size_text(size: float) -> str:
    """'512 B', '1.5 KiB', '2 GiB'."""
    unit = 0
    while size >= 1000 and unit < len(UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.3g} {UNITS[unit]}"


def artifact_table(artifacts: list[Document], now: float | None = None) -> RenderableType:
    if not artifacts:
        return quiet("no artifacts")
    columns = "id model job size worker age metrics".split()
    least = {"model": 10, "job": 12, "worker": 8, "metrics": 12}
    grid = Columns(*columns, cut=least, drop=("worker", "metrics", "model"), right=("size",))
    for artifact in artifacts:
        newest = artifact["jobs"][0]
        grid.add(
            handle(artifact["id"]),
            plain(about(artifact)),
            plain(_job_name(newest) + (f" and {len(artifact['jobs']) - 1} more" if artifact["jobs"][1:] else "")),
            size_text(artifact["size"]) if artifact["path"] else Text("gone", "bold red"),
            plain(newest["worker"]),
            since(artifact["created_at"], now),
            plain(metrics_text(artifact["metrics"])),
        )
    return grid


def artifact_screen(artifact: Document, now: float | None = None) -> RenderableType:
    jobs = Columns(*"job task worker attempt age metrics".split(), cut={"job": 12, "worker": 8, "metrics": 12})
    for job in artifact["jobs"]:
        jobs.add(
            plain(_job_name(job)),
            handle(job["task"]),
            plain(job["worker"]),
            plain(job["attempt"]),
            since(job["created_at"], now),
            plain(metrics_text(job["metrics"])),
        )
    return Group(
        heading(about(artifact) or _job_name(artifact["jobs"][0])) + Text(f"  {size_text(artifact['size'])}"),
        Text(),
        indented(facts(_facts(artifact, now))),
        Text(),
        heading("Made by"),
        indented(jobs),
        Text(),
        quiet(f"ostler artifacts get {handle(artifact['id'])} --extract fetches its files"),
    )


def _facts(artifact: Document, now: float | None) -> Iterator[tuple[str, Any]]:
    yield "id", artifact["id"]
    yield "size", f"{artifact['size']} bytes{', zstd' if artifact['compressed'] else ''}"
    yield "metrics", metrics_text(artifact["metrics"])
    yield "made", moment(artifact["created_at"], now)
    yield "on the hub", artifact["path"] or Text("its bytes are gone", "bold red")


def verified_table(found: list[Document]) -> RenderableType:
    if not found:
        return quiet("no artifacts")
    grid = Columns("id", "", "model", "size", cut={"model": 10}, right=("size",))
    for one in found:
        grid.add(handle(one["id"]), _verdict(one), plain(about(one)), size_text(one["size"]))
    bad = sum(not one["ok"] for one in found)
    if bad:
        return Group(grid, Text(f"{bad} of {count(len(found), 'artifact')} damaged", "bold red"))
    return Group(grid, Text(f"{count(len(found), 'artifact')} good"))


def _verdict(one: Document) -> Text:
    if one["ok"]:
        return Text("✓ good", "blue")
    return Text("✗ damaged" if one["here"] else "✗ gone", "bold red")


def removed_lines(done: Document) -> Iterator[RenderableType]:
    removed = done["removed"]
    if removed:
        grid = Columns("id", "size", right=("size",))
        for one in removed:
            grid.add(handle(one["id"]), size_text(one["size"]))
        yield grid
    would = "would be removed" if done["dry_run"] else "removed"
    what = f"{count(len(removed), 'artifact')} {would}, {size_text(done['bytes'])}"
    yield Text(what if removed else f"nothing {would}")


def about(artifact: Document) -> str:
    return " ".join(clean(part) for part in (artifact["model"], artifact["mode"]) if part)


def metrics_text(metrics: dict[str, float]) -> str:
    return " ".join(f"{clean(name)}={figure(value)}" for name, value in metrics.items())


def _job_name(job: Document) -> str:
    return clean(job["name"]) if job["name"] else handle(job["id"])
