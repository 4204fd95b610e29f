"""Tasks that write down when they begin and end, and that end when the test lets them."""

from collections import Counter
from pathlib import Path
from typing import Any

from tests.process_fleet import Document, until

DIARIST = """
echo "$OSTLER_TASK_ID $OSTLER_ATTEMPT $$" >> "$DIARY/pids"
echo "begin $OSTLER_TASK_ID $OSTLER_ATTEMPT" >> "$DIARY/lines"
until test -e "$DIARY/gate.${GATE:-$OSTLER_INDEX}" || test -e "$DIARY/gate.$OSTLER_ATTEMPT"; do sleep 0.05; done
echo "end $OSTLER_TASK_ID $OSTLER_ATTEMPT" >> "$DIARY/lines"
exit $(cat "$DIARY/gate.$OSTLER_ATTEMPT" 2>/dev/null || echo 0)
"""


class Diary:
    """Where tasks write a line when they begin and a line when they end, and the gates that they wait at between."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def spec(self, gate: str = "", **more: Any) -> Document:
        """A program that waits at this gate; without a name, of an array, each task at that of its index."""
        env = {"DIARY": str(self.folder)} | ({"GATE": gate} if gate else {})
        return {"command": ["sh", "-c", DIARIST], "env": env, "min_cpu_cores": 1, **more}

    def open(self, *gates: str | int) -> None:
        for gate in gates:
            (self.folder / f"gate.{gate}").touch()

    def end(self, attempt: str, exit_code: int) -> None:
        """Let this very attempt end, with this exit code."""
        draft = self.folder / f"draft.{attempt}"
        draft.write_text(str(exit_code))
        draft.rename(self.folder / f"gate.{attempt}")

    def lines(self) -> "Counter[tuple[str, ...]]":
        """How often each (begin or end, task, attempt) was written."""
        file = self.folder / "lines"
        return Counter(tuple(line.split()) for line in file.read_text().splitlines()) if file.exists() else Counter()

    def seen(self, word: str) -> "Counter[str]":
        """How often each task began, or ended."""
        counts: Counter[str] = Counter()
        for (what, task_id, _), times in self.lines().items():
            if what == word:
                counts[task_id] += times
        return counts

    def pids(self) -> dict[str, int]:
        """The latest process of each task that has begun."""
        lines = (self.folder / "pids").read_text().splitlines()
        return {task: int(pid) for task, _, pid in map(str.split, lines)}

    def await_begun(self, *tasks: str) -> None:
        until(lambda: set(tasks) <= self.seen("begin").keys(), f"{tasks} have begun: {self.seen('begin')}")

    def await_ended(self, *tasks: str) -> None:
        until(lambda: set(tasks) <= self.seen("end").keys(), f"{tasks} have ended: {self.seen('end')}")
