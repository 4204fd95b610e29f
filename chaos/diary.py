"""What tasks tell of themselves: a line at their begin and at their end, and a lock that no two runs of one share."""

import fcntl
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROGRAM = """
exec 9>> "$CHAOS/locks/$OSTLER_TASK_ID"
flock -n 9 || echo "overlap $OSTLER_TASK_ID $OSTLER_ATTEMPT $$ 0" >> "$CHAOS/lines"
read now rest < /proc/uptime
echo "begin $OSTLER_TASK_ID $OSTLER_ATTEMPT $$ $now" >> "$CHAOS/lines"
echo "first $OSTLER_TASK_ID $OSTLER_ATTEMPT"
sleep "$SECONDS_LONG"
if [ -n "$LEAVES" ]; then echo "left by $OSTLER_ATTEMPT" > "$OSTLER_OUT/left"; fi
echo "last $OSTLER_TASK_ID $OSTLER_ATTEMPT"
read now rest < /proc/uptime
echo "end $OSTLER_TASK_ID $OSTLER_ATTEMPT $$ $now" >> "$CHAOS/lines"
"""
"""The lock is the kernel's, and goes with the last process that has it: whoever cannot have it runs beside another."""


def call(folder: str, seconds: float) -> str:
    """The same as a function."""
    task, attempt = os.environ["OSTLER_TASK_ID"], os.environ["OSTLER_ATTEMPT"]

    def tell(word: str) -> None:
        with open(f"{folder}/lines", "a") as lines:
            lines.write(f"{word} {task} {attempt} {os.getpid()} {time.clock_gettime(time.CLOCK_BOOTTIME):.2f}\n")

    with open(f"{folder}/locks/{task}", "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell("overlap")
        tell("begin")
        print(f"first {task} {attempt}", flush=True)
        time.sleep(seconds)
        print(f"last {task} {attempt}", flush=True)
        tell("end")
    return value_of(task, attempt)


def value_of(task: str, attempt: str) -> str:
    return f"the value of {task} {attempt}"


def log_of(task: str, attempt: str) -> str:
    return f"first {task} {attempt}\nlast {task} {attempt}\n"


class Line(NamedTuple):
    word: str
    task: str
    attempt: str
    process: str
    at: str


class Diary:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "locks").mkdir(parents=True)
        (folder / "lines").touch()

    def env(self, seconds: float, leaves: bool = False) -> dict[str, str]:
        return {"CHAOS": str(self.folder), "SECONDS_LONG": f"{seconds:.2f}", "LEAVES": "1" if leaves else ""}

    def lines(self) -> Iterator[Line]:
        for text in (self.folder / "lines").read_text().splitlines():
            words = text.split()
            if len(words) == len(Line._fields):  # a task that was killed, or a full disk, may leave a part of one
                yield Line(*words)

    def counts(self) -> "Counter[tuple[str, str, str]]":
        """How often each (word, task, attempt) was written."""
        return Counter((line.word, line.task, line.attempt) for line in self.lines())

    def size(self) -> int:
        return (self.folder / "lines").stat().st_size
