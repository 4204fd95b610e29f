"""A folder per task that is kept across its attempts, for as long as there is something in it."""

import contextlib
import os
from pathlib import Path

SPARE = ".spare-"
MAX_SPARE = 64


class Checkpoints:
    """
    Most tasks leave theirs empty. Making and removing a folder costs a third of what a short task costs in all, so an
    empty one is not removed but renamed, for the next task.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = os.fspath(folder)
        os.makedirs(self._folder, 0o700, exist_ok=True)
        self._spare = [entry.path for entry in os.scandir(self._folder) if entry.name.startswith(SPARE)]
        self._made = 0

    def open(self, task_id: str) -> str:
        """The task's folder, with what its earlier attempts on this machine have left there."""
        path = f"{self._folder}/{task_id}"
        spare = self._spare.pop() if self._spare else ""
        try:
            # Takes the place of an empty folder; one with something in it stays as it is.
            os.rename(spare, path)
            return path
        except FileNotFoundError:
            pass
        except OSError:
            self._spare.append(spare)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        return path

    def close(self, task_id: str) -> None:
        """The attempt is over. An empty folder is of no use to the next one."""
        path = f"{self._folder}/{task_id}"
        with contextlib.suppress(OSError):
            if os.listdir(path):
                return
            if len(self._spare) == MAX_SPARE:
                os.rmdir(path)
                return
            spare = f"{self._folder}/{SPARE}{self._made}"
            self._made += 1
            # Of an earlier start there may be one of this name: this one takes its place.
            os.rename(path, spare)
            if spare not in self._spare:
                self._spare.append(spare)
