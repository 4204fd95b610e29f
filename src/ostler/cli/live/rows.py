"""Machines and jobs as rows of a live table, for the width that there is."""

from typing import Any

from rich.text import Text

from ostler.cli.render.machines import gpus_line, runs_line, totals_line, worker_state
from ostler.cli.render.models import state_of
from ostler.cli.render.parts import bar, plain, quiet, state_text
from ostler.cli.render.words import amount, clean, error_of, needs, short_ids, since, took
from ostler.domain import states

Document = dict[str, Any]
WIDE = 120
BAR = 8

ON = "on:"
"""A filter that begins so names a machine: only what is there passes."""
MACHINES = ("machine", "state", "gpus", "cores", "memory", "runs")
NARROW_MACHINES = ("machine", "state", "gpus", "cores", "runs")
JOBS = ("id", "name", "state", "user", "worker", "needs", "for", "reason")
NARROW_JOBS = ("id", "name", "state", "worker", "for", "reason")


def machine_columns(width: int) -> tuple[str, ...]:
    return MACHINES if width >= WIDE else NARROW_MACHINES


def job_columns(width: int) -> tuple[str, ...]:
    return JOBS if width >= WIDE else NARROW_JOBS


def machine_row(worker: Document, names: dict[str, str], width: int) -> list[Text]:
    free = worker.get("free") or {}
    cores, memory = worker.get("cpu_count", 0), worker.get("memory_gb", 0)
    cells = {
        "machine": _cut(worker["id"], 24 if width >= WIDE else 12),
        "state": worker_state(worker),
        "gpus": gpus_line(worker) if width >= WIDE else _few_gpus(worker),
        "cores": meter(cores - free.get("cores", cores), cores),
        "memory": meter(memory - free.get("memory_gb", memory), memory, " GiB"),
        "runs": runs_line(worker, names),
    }
    return [cells[column] for column in machine_columns(width)]


def _few_gpus(worker: Document) -> Text:
    devices = worker.get("devices") or []
    held = sum(1 for device in devices if device.get("held_by"))
    return bar(held, len(devices), BAR) or (plain(f"{held}/{len(devices)}") if devices else quiet("–"))


def meter(used: float, total: float, unit: str = "") -> Text:
    """'████░░░░ 12/32': what is held, as a bar and in figures."""
    if total <= 0:
        return quiet("–")
    filled = min(BAR, max(int(used > 0), round(BAR * used / total)))
    line = Text("█" * filled, "cyan") + Text("░" * (BAR - filled), "bright_black")
    return line.append(f" {amount(used)}/{amount(total)}{unit}", "default")


def totals(found: Document, width: int) -> Text:
    """All machines together; in figures alone where there is little room."""
    if width >= WIDE:
        return Text(" ") + totals_line(found)
    workers = found.get("workers") or {}
    connected = workers.get("ready", 0) + workers.get("busy", 0)
    parts = [f"{connected}/{sum(workers.values())} machines"]
    for key, told in (("gpus", "GPUs"), ("cores", "cores"), ("memory_gb", "GiB")):
        if found[key]["total"]:
            parts.append(f"{amount(found[key]['held'])}/{amount(found[key]['total'])} {told}")
    return Text(f" {' · '.join(parts)} held")


def job_rows(jobs: list[Document], width: int) -> dict[str, list[Text]]:
    """By id, in the order in which they are given."""
    ids = short_ids(job["id"] for job in jobs)
    return {job["id"]: _job_row(job, ids[job["id"]], width) for job in jobs}


def _job_row(job: Document, short: str, width: int) -> list[Text]:
    begun = job.get("started_at") or job.get("submitted_at")
    cells = {
        "id": plain(short),
        "name": _cut(job.get("name") or "", 28 if width >= WIDE else 14),
        "state": state_text(job["state"], _progress(job)),
        "user": _cut(job.get("user_id") or "", 12),
        "worker": _cut(job.get("worker") or "", 20 if width >= WIDE else 10),
        "needs": _cut(needs(job.get("spec") or {}), 36),
        "for": Text(took(begun, job.get("finished_at")) if job["state"] in states.TERMINAL else since(begun)),
        "reason": plain(error_of(job)),
    }
    return [cells[column] for column in job_columns(width)]


def _progress(job: Document) -> str:
    counts = job.get("counts") or {}
    ended = sum(counts.get(state, 0) for state in states.TERMINAL)
    return f"{ended}/{sum(counts.values())}" if counts else ""


def models_line(models: list[Document]) -> Text:
    """'qwen ● ready · llama ◐ loading'."""
    parts = []
    for model in models:
        part = Text(clean(model["name"]), "bold") + Text(" ") + state_of(model)
        busy = [f"{model[key]} {word}" for key, word in (("in_flight", "serving"), ("queued", "waiting")) if model[key]]
        parts.append(part + Text(f" {', '.join(busy)}" if busy else ""))
    return Text(" · ").join(parts)


def _cut(text: str, most: int) -> Text:
    shown = clean(text)
    return Text(shown if len(shown) <= most else shown[: most - 1] + "…")


def jobs_on(workers: list[Document], name: str) -> set[str]:
    """The jobs of which something is on this machine."""
    tasks = (task for one in workers if one["id"] == name for task in one.get("tasks") or [])
    return {task["task_id"].partition(".")[0] for task in tasks}


def holds(text: str, document: Document) -> bool:
    """Whether a filter lets this pass: every word of it is somewhere in what is shown."""
    fields = (document.get(key) or "" for key in ("id", "name", "state", "status", "user_id", "worker", "reason"))
    found = " ".join(str(field) for field in fields).lower()
    return all(word in found for word in text.lower().split())
