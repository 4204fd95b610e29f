"""The manifest on a terminal: what an apply changed or would change, and how far its jobs have come."""

import json
from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ostler.cli.render.columns import Columns
from ostler.cli.render.parts import heading, indented, plain, progress_bar, quiet, state_text
from ostler.cli.render.words import clean, count, counts_line, error_of, handle, since

Document = dict[str, Any]
CHANGES = {
    "inserted": ("+", "blue"),
    "updated": ("~", "yellow"),
    "absent": ("–", "bright_black"),
    "unchanged": ("=", "bright_black"),
}
COUNTED = ("inserted", "unchanged", "updated", "absent")
KEY_OF_FIELD = {
    "gpu_backend": "require_cuda",
    "gpu_count": "require_cuda",
    "min_cpu_cores": "min_cores",
    "min_memory_gb": "min_ram_gib",
    "min_vram_gb": "min_vram_gib",
    "prefer_cuda_grace_seconds": "prefer_cuda_grace_s",
}
"""Fields of a spec that the manifest has another word for."""
LEAST = {"job": 16, "differs": 12}
BAR = 30
MOST_CHANGES = 50
LONGEST_VALUE = 120
MOST_FAILED = 10
MOST_WORKERS = 6


def change_table(answer: Document) -> RenderableType:
    """What is not as it was; the rest is only counted."""
    changed = [job for job in answer["jobs"] if job["change"] != "unchanged"]
    parts: list[RenderableType] = []
    if changed:
        differ = _column_of_differences(changed)
        grid = Columns("change", "job", "id", *differ, cut=LEAST, drop=("id",))
        for job in changed[:MOST_CHANGES]:
            grid.add(_change(job), plain(job["name"]), handle(job["job_id"]), *(_differs(job) for _ in differ))
        parts.append(grid)
        if len(changed) > MOST_CHANGES:
            parts.append(quiet(f"and {len(changed) - MOST_CHANGES} more"))
        parts.append(Text())
    parts.append(plain(_counts(answer)))
    if later := sum(job["change"] == "unchanged" and bool(job["differs"]) for job in answer["jobs"]):
        parts.append(quiet(f"{later} that have ended are otherwise by now: so they run if somebody requeues them"))
    if answer["absent"]:
        parts.append(quiet("absent ones are kept as they are until somebody cancels them: ostler cancel ID"))
    return Group(*parts)


def plan_table(answer: Document) -> RenderableType:
    """Every job: what would become of it, and who could run it now."""
    parts: list[RenderableType] = []
    if answer["jobs"]:
        differ = _column_of_differences(answer["jobs"])
        grid = Columns("change", "job", "state", *differ, "could run now on", cut=LEAST, wrap="could run now on")
        for job in answer["jobs"]:
            differs = (_differs(job) for _ in differ)
            grid.add(_change(job), plain(job["name"]), state_text(job["state"]), *differs, _where(job))
        parts += [grid, Text(), *_value_table(answer["jobs"])]
    parts.append(plain(f"{_counts(answer)}, if this were applied"))
    if renamed := sum(any(one["key"] == "name" for one in job.get("changes") or []) for job in answer["jobs"]):
        parts.append(quiet(f"other names for {count(renamed, 'job')}: only `ostler apply --replace` gives them"))
    return Group(*parts)


def _value_table(jobs: list[Document]) -> list[RenderableType]:
    """The old and the new value of everything that differs."""
    changed = [job for job in jobs if job.get("changes")]
    if not changed:
        return []
    grid = Columns("job", "key", "old", "new", cut={"job": 12, "key": 8, "old": 10, "new": 10})
    for job in changed[:MOST_CHANGES]:
        for key, old, new in _values(job["changes"]):
            grid.add(plain(job["name"]), plain(key), value_text(old), value_text(new))
    if len(changed) > MOST_CHANGES:
        return [grid, quiet(f"and the values of {len(changed) - MOST_CHANGES} more: --json has all"), Text()]
    return [grid, Text()]


def _values(changes: list[Document]) -> Iterator[tuple[str, Any, Any]]:
    """Each change in the manifest's words. Two fields stand for `require_cuda`; one of them says all of it."""
    for one in changes:
        if one["key"] == "gpu_count":
            yield "require_cuda", bool(one["old"]), bool(one["new"])
        elif one["key"] != "gpu_backend":
            yield KEY_OF_FIELD.get(str(one["key"]), str(one["key"])), one["old"], one["new"]


def value_text(value: Any) -> Text:
    """A value of a manifest as a person would write it there, in one short line."""
    if value is None:
        return quiet("–")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
    return plain(text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…")


def _change(job: Document) -> Text:
    sign, style = CHANGES.get(job["change"], ("?", ""))
    return Text(f"{sign} {clean(job['change'])}", style)


def _column_of_differences(jobs: list[Document]) -> list[str]:
    return ["differs"] if any(job["differs"] for job in jobs) else []


def _differs(job: Document) -> Text:
    return plain(", ".join(dict.fromkeys(KEY_OF_FIELD.get(field, field) for field in job["differs"])))


def _where(job: Document) -> Text:
    workers = job.get("workers") or []
    more = f" and {len(workers) - MOST_WORKERS} more" if len(workers) > MOST_WORKERS else ""
    return plain(", ".join(workers[:MOST_WORKERS]) + more) if workers else quiet(job.get("why") or "")


def _counts(answer: Document) -> str:
    return ", ".join(f"{answer[kind]} {kind}" for kind in COUNTED)


def manifest_progress(manifest: Document, now: float | None = None) -> list[RenderableType]:
    """Its jobs by what has become of them."""
    counts = manifest["counts"]
    file = f"  {clean(manifest['file'])}" if manifest.get("file") else ""
    applied = f", applied {since(manifest['applied_at'], now)} ago" if manifest.get("applied_at") else ""
    parts: list[RenderableType] = [heading("Manifest") + quiet(file + applied)]
    if not counts:
        return [*parts, indented(quiet("no jobs"))]
    return [*parts, indented(progress_bar(counts, BAR)), indented(plain(counts_line(counts, "completed")))]


def manifest_failures(manifest: Document, now: float | None = None) -> list[RenderableType]:
    """The newest of its jobs that failed, with their errors."""
    failed = manifest.get("failed") or []
    if not failed:
        return []
    grid = Columns("job", "ago", "worker", "error", cut={"job": 12, "error": 20}, drop=("worker",))
    for job in failed[:MOST_FAILED]:
        name = job.get("name") or handle(job["id"])
        ago = since(job.get("finished_at"), now)
        grid.add(plain(name), ago, plain(job.get("worker") or ""), error_of(job))
    parts: list[RenderableType] = [heading("Failed"), indented(grid)]
    left_out = max(manifest["counts"].get("failed", 0), len(failed)) - min(len(failed), MOST_FAILED)
    if left_out:
        parts.append(indented(quiet(f"and {left_out} more: ostler jobs --status failed")))
    return parts
