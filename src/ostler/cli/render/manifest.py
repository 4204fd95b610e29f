"""The manifest on a terminal: what an apply changed or would change, and how far its jobs have come."""

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ostler.cli.render.columns import Columns
from ostler.cli.render.parts import heading, indented, plain, progress_bar, quiet, state_text
from ostler.cli.render.words import clean, counts_line, error_of, handle, since

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
        parts += [grid, Text()]
    parts.append(plain(f"{_counts(answer)}, if this were applied"))
    return Group(*parts)


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
