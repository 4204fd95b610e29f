"""How far a wait has come, on standard error and only where somebody watches."""

import sys
import time
from types import TracebackType
from typing import Any

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from ostler.cli.render.terminal import console
from ostler.cli.render.words import clean, counts_line, span
from ostler.domain import states

Document = dict[str, Any]


class WaitBar:
    """One bar over all tasks; gone again when the wait is over."""

    def __init__(self, jobs: int) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", style="bright_black"),
            BarColumn(bar_width=30, complete_style="cyan", finished_style="blue"),
            TextColumn("{task.fields[told]}"),
            TimeElapsedColumn(),
            console=console(sys.stderr),
            transient=True,
        )
        what = "waiting for the job" if jobs == 1 else f"waiting for {jobs} jobs"
        self._bar = self._progress.add_task(what, total=None, told="")

    def __enter__(self) -> "WaitBar":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def __call__(self, found: dict[str, Document]) -> None:
        counts = task_counts(found)
        total = sum(counts.values())
        ended = sum(counts.get(state, 0) for state in states.TERMINAL)
        told = counts_line(counts) if total > 1 else next(iter(counts))
        self._progress.update(self._bar, total=total if total > 1 else None, completed=ended, told=told)


class PlaceLine:
    """Why a job has not begun; gone again as soon as it has."""

    def __init__(self, called: str) -> None:
        self._called = called
        self._status = console(sys.stderr).status("", spinner="dots")
        self._began = time.monotonic()

    def __enter__(self) -> "PlaceLine":
        self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._status.stop()

    def __call__(self, why: str) -> None:
        told = f": {clean(why)}" if why else ""
        line = Text(f"{self._called} waits for a place, {span(time.monotonic() - self._began)}{told}", "bright_black")
        line.truncate(max(20, self._status.console.width - 4), overflow="ellipsis")
        self._status.update(line)


class UploadBar:
    """Bytes on their way to the hub; not there at all where nothing has to be sent."""

    def __init__(self, what: str, size: int = 0) -> None:
        """`size`, where it is known before anything is done."""
        self._progress = Progress(
            TextColumn("{task.description}", style="bright_black"),
            BarColumn(bar_width=30, complete_style="cyan", finished_style="blue"),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            console=console(sys.stderr),
            transient=True,
        )
        self._what = what
        self._size = size
        self._done = 0
        self._bar: TaskID | None = None

    def __enter__(self) -> "UploadBar":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None:
            self._bar = self._progress.add_task(self._what, total=total)
            self._progress.start()
        self._progress.update(self._bar, completed=done)

    def more(self, done: int) -> None:
        self._done += done
        self(self._done, self._size)


def task_counts(found: dict[str, Document]) -> dict[str, int]:
    """Tasks by state over several jobs; a job that is no array is one task."""
    counts: dict[str, int] = {}
    for job in found.values():
        for state, number in (job.get("counts") or {job["state"]: 1}).items():
            counts[state] = counts.get(state, 0) + number
    return counts
