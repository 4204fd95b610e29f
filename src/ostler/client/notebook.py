"""How fleets, jobs and maps look in a notebook, and how they are watched there while a cell waits for them.

Nothing is asked for but IPython's own display, which any kernel has; without one nothing is loaded or shown.
"""

import contextlib
import html
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

from ostler.domain.states import ASSIGNED, CANCELLED, FAILED, ORPHANED, PENDING, RUNNING, SUCCEEDED, UNSCHEDULABLE

Document = dict[str, Any]
EVERY_S = 0.25
MOST_WORKERS = 20
COLOURS = {
    SUCCEEDED: "#2f9e44",
    RUNNING: "#1c7ed6",
    ASSIGNED: "#74c0fc",
    PENDING: "#adb5bd",
    ORPHANED: "#f08c00",
    FAILED: "#e03131",
    UNSCHEDULABLE: "#e03131",
    CANCELLED: "#868e96",
}


def is_here() -> bool:
    """Whether this is a notebook's kernel, and may be drawn on: OSTLER_PROGRESS=0 forbids it."""
    ipython = sys.modules.get("IPython") if os.environ.get("OSTLER_PROGRESS") != "0" else None
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


# How things look


def job_html(document: Document) -> str:
    state = str(document["state"])
    rows = [
        ("job", _code(document["id"])),
        ("state", _badge(state) + (f" &mdash; {_text(document['reason'])}" if document.get("reason") else "")),
        ("worker", _text(document.get("worker") or "")),
        ("user", _text(document.get("user_id") or "")),
        ("submitted", _time(document.get("submitted_at"))),
        ("started", _time(document.get("started_at"))),
        ("finished", _time(document.get("finished_at"))),
    ]
    if document.get("exit_code") not in (None, 0):
        rows.append(("exit code", _text(document["exit_code"])))
    if document.get("counts"):
        rows.insert(2, ("tasks", counts_bar(document["counts"])))
    body = "".join(f"<tr><th style='text-align:left'>{name}</th><td>{value}</td></tr>" for name, value in rows if value)
    return f"<div><b>{_text(document.get('name') or 'job')}</b><table>{body}</table></div>"


def fleet_html(url: str, status: Document, workers: list[Document]) -> str:
    jobs, gpus, cores = status["jobs"], status["gpus"], status["cores"]
    head = (
        f"<div><b>Fleet</b> {_code(url)}: {jobs[PENDING]} waiting, {jobs[RUNNING]} running; "
        f"{gpus['held']} of {gpus['total']} GPUs and {cores['held']:g} of {cores['total']:g} cores held"
    )
    names = ("worker", "status", "GPUs", "cores", "memory", "jobs")
    rows = [
        (
            _text(one["id"]),
            _text(one["status"] + (", draining" if one["draining"] else "")),
            f"{one['gpu_count'] - one['free']['gpus']} of {one['gpu_count']}",
            f"{one['cpu_count']:g}",
            f"{one['memory_gb']:.0f} GiB",
            str(one["active_jobs"]),
        )
        for one in workers[:MOST_WORKERS]
    ]
    more = f"<div>and {len(workers) - MOST_WORKERS} more workers</div>" if len(workers) > MOST_WORKERS else ""
    return f"{head}{_table(names, rows)}{more}</div>"


def counts_bar(counts: dict[str, int]) -> str:
    """Tasks by state, as one bar and in words."""
    total = sum(counts.values()) or 1
    order = (SUCCEEDED, RUNNING, ASSIGNED, ORPHANED, FAILED, UNSCHEDULABLE, CANCELLED, PENDING)
    parts = "".join(
        f"<span style='display:inline-block;height:10px;width:{100 * counts[state] / total:.3g}%;"
        f"background:{COLOURS[state]}' title='{counts[state]} {state}'></span>"
        for state in order
        if counts.get(state)
    )
    words = ", ".join(f"{counts[state]} {state}" for state in order if counts.get(state))
    return (
        "<div style='width:20em;line-height:0;border-radius:3px;overflow:hidden;background:#8882'>"
        f"{parts}</div><div>{words}</div>"
    )


def _table(names: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    head = "".join(f"<th style='text-align:left'>{name}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _text(value: object) -> str:
    return html.escape(str(value))


def _code(value: object) -> str:
    return f"<code>{_text(value)}</code>"


def _badge(state: str) -> str:
    return f"<b style='color:{COLOURS.get(state, 'inherit')}'>{_text(state)}</b>"


def _time(at: str | None) -> str:
    return f"{at[:10]} {at[11:19]} UTC" if at else ""


def plain_html(text: str) -> str:
    return f"<div>{_code(text)}</div>"


def shown(make: Callable[[], str], plain: str) -> str:
    """A repr never raises: a hub that does not answer is said so beside the plain one."""
    try:
        return make()
    except Exception as error:
        return f"<div>{_code(plain)}: {_text(error)}</div>"


# What is watched


class Live:
    """One place in a cell's output that is written over, a few times a second at most."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._handle: Any = None
        self._begun = time.monotonic()
        self._next = 0.0

    def tell(self, counts: dict[str, int], *, last: bool = False) -> None:
        now = time.monotonic()
        if now < self._next and not last:
            return
        self._next = now + EVERY_S
        bundle = {"text/plain": self._words(counts, now), "text/html": self._html(counts, now)}
        if self._handle is None:
            display: Any = import_module("IPython.display").display
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)

    def _words(self, counts: dict[str, int], now: float) -> str:
        told = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
        return f"{self._title}: {told} ({_span(now - self._begun)})"

    def _html(self, counts: dict[str, int], now: float) -> str:
        return f"<div><b>{_text(self._title)}</b> {_span(now - self._begun)}{counts_bar(counts)}</div>"


def _span(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


Told = Callable[[bool], None]


def _nobody(succeeded: bool) -> None:
    return


@contextlib.contextmanager
def counting(title: str, total: int) -> Iterator[Told]:
    """Shows how many of so many calls have ended, in a notebook; each is told of by whether it succeeded."""
    if not is_here():
        yield _nobody
        return
    live, counts = Live(title), {SUCCEEDED: 0, FAILED: 0, PENDING: total}
    live.tell(counts)

    def told(succeeded: bool) -> None:
        counts[SUCCEEDED if succeeded else FAILED] += 1
        counts[PENDING] -= 1
        live.tell(counts)

    try:
        yield told
    finally:
        live.tell(counts, last=True)


class Watching:
    """Shows the job that a cell waits for, once that takes longer than a moment."""

    AFTER_S = 1.0

    def __init__(self) -> None:
        self._due = time.monotonic() + self.AFTER_S
        self._live: Live | None = None

    def tell(self, document: Document, *, over: bool) -> None:
        if self._live is None and time.monotonic() < self._due:
            return
        if self._live is None:
            if over:
                return
            self._live = Live(str(document.get("name") or document["id"]))
        self._live.tell(document.get("counts") or {str(document["state"]): 1}, last=over)
