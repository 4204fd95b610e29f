"""Jobs on a terminal: the list, and one of them in full."""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from rich.console import Group, RenderableType
from rich.text import Text

from ostler.cli.render.columns import Columns
from ostler.cli.render.parts import facts, heading, indented, plain, quiet, state_text
from ostler.cli.render.words import (
    clean,
    command_line,
    counts_line,
    error_of,
    exit_code_words,
    figure,
    gib,
    handle,
    is_exit_code,
    moment,
    needs,
    settings,
    short_ids,
    since,
    span,
    took,
)
from ostler.domain import states

Document = dict[str, Any]
_SECRET = re.compile("key|token|secret|passw|credential", re.IGNORECASE)


def job_table(jobs: list[Document], now: float | None = None) -> RenderableType:
    if not jobs:
        return quiet("no jobs")
    ids = short_ids(job["id"] for job in jobs)
    columns = "id name state worker needs age reason".split()
    least = {"name": 12, "worker": 10, "needs": 10, "reason": 18}
    grid = Columns(*columns, cut=least, drop=("needs", "worker", "reason"))
    for job in jobs:
        grid.add(
            ids[job["id"]],
            plain(job.get("name") or ""),
            state_text(job["state"], _progress(job)),
            plain(job.get("worker") or ""),
            needs(job.get("spec") or {}),
            since(job.get("submitted_at"), now),
            plain(job.get("reason") or ""),
        )
    return grid


def _progress(job: Document) -> str:
    """Of an array that runs: how many of its tasks have ended. Of one that has failed: how many have."""
    counts = job.get("counts") or {}
    total = sum(counts.values())
    ended = sum(counts.get(state, 0) for state in states.TERMINAL)
    bad = ended - counts.get(states.SUCCEEDED, 0)
    if not total:
        return ""
    if job["state"] in states.TERMINAL:
        return f"{bad} of {total}" if bad else f"{total}"
    return f"{ended}/{total} ({bad} ✗)" if bad else f"{ended}/{total}"


def job_screen(job: Document, now: float | None = None) -> RenderableType:
    spec = job.get("spec") or {}
    parts: list[RenderableType] = [_headline(job, now), Text(), indented(facts(_job_facts(job, spec, now)))]
    if attempts := job.get("attempts") or []:
        parts += [Text(), heading("Attempts"), indented(_attempts(attempts, now))]
    if hint := _next_step(job):
        parts += [Text(), quiet(hint)]
    return Group(*parts)


def _headline(job: Document, now: float | None) -> Text:
    line = heading(job.get("name") or job["id"]) + Text("  ") + state_text(job["state"])
    if job["state"] == states.PENDING:
        return line  # where it was before, and since when, its attempts tell
    if job.get("worker"):
        line.append(f" on {clean(job['worker'])}")
    if job["state"] in states.TERMINAL:
        if length := took(job.get("started_at"), job.get("finished_at"), now):
            line.append(f" after {length}")
    elif job.get("started_at"):
        line.append(f" for {since(job['started_at'], now)}")
    return line


def _job_facts(job: Document, spec: Document, now: float | None) -> Iterator[tuple[str, Any]]:
    yield "id", job["id"]
    # A reason that is no more than the exit code is left out: the exit code has a line of its own.
    yield "reason", "" if is_exit_code(error_of(job)) else error_of(job)
    yield from _training_facts(job, spec.get("training") or {})
    yield "command", _what_runs(spec)
    yield "needs", needs(spec).strip("–")
    yield "prefers", ", ".join(spec.get("prefer_labels") or [])
    if counts := job.get("counts"):
        yield "tasks", counts_line(counts)
    yield "exit code", exit_code_words(job.get("exit_code"))
    if spec.get("type") == "service":
        yield "address", f"/services/{quote(job.get('name') or job['id'])}/ on the hub, with a token"
    yield "user", job.get("user_id")
    yield "kind", " · ".join(_kind(spec))
    yield "limits", " · ".join(_limits(spec))
    yield "env", " ".join(_variables(spec.get("env") or {}))
    yield "submitted", moment(job.get("submitted_at"), now)
    yield "started", moment(job.get("started_at"), now)
    yield "finished", moment(job.get("finished_at"), now)
    if artifact := job.get("artifact_id"):
        yield "artifact", f"{artifact}\nfetch it with: ostler artifacts get {handle(artifact)}"


def _training_facts(job: Document, training: Document) -> Iterator[tuple[str, Any]]:
    yield "model", " ".join(part for part in (training.get("model"), training.get("mode")) if part)
    yield "sweep", training.get("sweep")
    yield "hyper", settings(training.get("hyper") or {})
    yield "seed", str(training.get("seed", 0)) if training else ""
    yield "data", " · ".join(_data(training))
    yield "metrics", " ".join(f"{clean(name)}={figure(value)}" for name, value in (job.get("metrics") or {}).items())


def _data(training: Document) -> Iterator[str]:
    if training.get("split_recipe"):
        yield f"split by {training['split_recipe']}"
    if training.get("train_hosts"):
        yield f"trained on {', '.join(training['train_hosts'])}"
    if training.get("n_resamples"):
        yield f"{training['n_resamples']} resamples"


def _variables(env: Document) -> Iterator[str]:
    """Screens are shared and recorded: what looks like a secret stays in `--json`."""
    for name, value in env.items():
        yield f"{name}={'…' if _SECRET.search(name) else value}"


def _what_runs(spec: Document) -> str:
    if "ostler.call" in (spec.get("metadata") or {}):
        return "a Python function"
    return command_line(spec.get("command") or [])


def _kind(spec: Document) -> Iterator[str]:
    yield spec.get("type") or "batch"
    yield f"tier {spec.get('job_tier') or 'data_processing'}"
    if spec.get("priority"):
        yield f"priority {spec['priority']}"
    if spec.get("array"):
        yield f"array of {spec['array']}"
    if spec.get("preemptible"):
        yield "preemptible"


def _limits(spec: Document) -> Iterator[str]:
    if hours := spec.get("max_runtime_hours"):
        yield f"runs for {span(hours * 3600)} at most"
    if seconds := spec.get("scheduling_timeout_seconds"):
        yield f"waits for {span(seconds)} at most"
    if retries := spec.get("max_retries"):
        yield f"up to {retries} more tries after a failure"


def _attempts(attempts: list[Document], now: float | None) -> RenderableType:
    peaks = [_peak(attempt) for attempt in attempts]
    shown = "# worker state started took peak reason" if any(peaks) else "# worker state started took reason"
    grid = Columns(*shown.split(), cut={"worker": 10, "reason": 20}, right=("#",))
    for number, (attempt, peak) in enumerate(zip(attempts, peaks, strict=True), 1):
        grid.add(
            str(number),
            plain(attempt.get("worker") or ""),
            state_text(attempt["state"]),
            (since(attempt.get("started_at"), now) + " ago") if attempt.get("started_at") else "",
            took(attempt.get("started_at"), attempt.get("finished_at"), now),
            *([peak] if any(peaks) else []),
            plain(attempt.get("reason") or ""),
        )
    return grid


def _peak(attempt: Document) -> str:
    """What it took at most of memory, and of VRAM."""
    memory, vram = attempt.get("peak_memory_mib"), attempt.get("peak_vram_mib")
    parts = [gib(memory / 1024)] if memory else []
    return ", ".join([*parts, f"{gib(vram / 1024)} VRAM"] if vram else parts)


def _next_step(job: Document) -> str:
    match job["state"]:
        case states.PENDING | states.ORPHANED | states.UNSCHEDULABLE:
            return f"ostler why {handle(job['id'])} tells what it waits for"
        case states.RUNNING | states.FAILED if not job.get("counts"):
            return f"ostler logs {handle(job['id'])} shows its output"
        case states.RUNNING | states.FAILED:
            return f"ostler show {handle(job['id'])} --tasks lists its tasks"
        case _:
            return ""


def task_table(tasks: list[Document], now: float | None = None) -> RenderableType:
    if not tasks:
        return quiet("no tasks")
    grid = Columns(*"task state worker took exit reason".split(), cut={"worker": 10, "reason": 20})
    for task in tasks:
        code = task.get("exit_code")
        grid.add(
            plain(task["id"]),
            state_text(task["state"]),
            plain(task.get("worker") or ""),
            took(task.get("started_at"), task.get("finished_at"), now),
            "" if code is None else str(code),
            plain(task.get("reason") or ""),
        )
    return grid
