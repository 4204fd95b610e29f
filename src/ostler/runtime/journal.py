"""What the supervisor must still know after it was killed: one file, one line for each thing that happened.

A start is written before the process exists, so anything that may run is found again, and an attempt that is not in
the journal was never started and may be launched safely. An end is written before it is told.

Written without waiting for the disk: a supervisor that is killed loses nothing, and when the whole machine goes down
its tasks go with it. Standard library only: the supervisor imports this.
"""

import contextlib
import json
import os
import sys
from typing import Any

from ostler.runtime.frames import pack, quote

MAX_BYTES = 4 * 1024 * 1024


class Journal:
    def __init__(self, path: str, boot: str) -> None:
        self.starts: dict[str, dict[str, Any]] = {}
        """Attempts without an end, as last written."""
        self.ends: dict[str, dict[str, Any]] = {}
        """Ends that have not been forgotten."""
        self.prepared = ""
        """The attempt whose folder was made last without a start."""
        self.path = path
        self._boot = boot
        self._quoted_boot = quote(boot)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._room = 0
        self._lines: list[str] = []
        self._has_ends = False
        """Whether there is an end among these."""
        self._read()
        self._rewrite()

    def preparing(self, attempt: str) -> None:
        """On the disk when this returns: its folder comes next, and its start may. "": there is none any more."""
        self.prepared = attempt
        self._lines.append(f'{{"prepared":"{attempt}"}}')
        self.flush()

    def starting(
        self,
        attempt: str,
        task_id: str,
        at: float,
        *,
        checkpoint: str = "",
        room: str = "",
        pid: int = 0,
        ticks: int = 0,
        flush: bool = True,
    ) -> None:
        """On the disk when this returns: the process comes next. Without `flush` the caller sees to that.

        `checkpoint` is where it keeps what its next attempt is to find: whoever takes the attempt back asks for it.
        `room` is the name of the folder in which it runs, where that is not its own. `pid` and `ticks`: if it is there.
        """
        start = {"task_id": task_id, "started_at": at, "boot": self._boot, "checkpoint": checkpoint, "room": room}
        where = ""
        if pid:
            start["pid"], start["ticks"] = pid, ticks
            where = f',"pid":{pid},"ticks":{ticks}'
        self.starts[attempt] = start
        if attempt == self.prepared:
            self.prepared = ""
        self._lines.append(
            f'{{"start":"{attempt}","task_id":{quote(task_id)},"started_at":{at!r},"boot":{self._quoted_boot},'
            f'"checkpoint":{quote(checkpoint)},"room":"{room}"{where}}}'
        )
        if flush:
            self.flush()

    def started(self, attempt: str, pid: int, ticks: int) -> None:
        """Helps to find it; it would be found without, by its environment. So this can wait for the next write."""
        self.starts[attempt].update(pid=pid, ticks=ticks)
        self._lines.append(f'{{"start":"{attempt}","pid":{pid},"ticks":{ticks}}}')

    def ended(self, attempt: str, end: dict[str, Any], text: str) -> None:
        """`text` is the end, encoded. The caller flushes before it tells anyone."""
        self._end(attempt, end)
        self._lines.append(f'{{"end":"{attempt}","how":{text}}}')
        self._has_ends = True

    def vacated(self, attempt: str) -> None:
        """It has left nothing, and its room is another's from now on: that one's start is written after this."""
        if self.ends[attempt].pop("room", None) is not None:
            self._lines.append(f'{{"vacated":"{attempt}"}}')

    def dropped(self, name: str) -> None:
        """Started, and gone without an end that anybody waits for."""
        if self.starts.pop(name, None) is not None:
            self._lines.append(f'{{"forget":"{name}"}}')

    def forgotten(self, attempt: str) -> None:
        if self.ends.pop(attempt, None) is not None:
            self._lines.append(f'{{"forget":"{attempt}"}}')

    @property
    def is_whole(self) -> bool:
        """Whether all of it could be written, when that was last tried."""
        return self._room >= 0

    @property
    def waits(self) -> bool:
        """Whether something has not been written yet."""
        return bool(self._lines)

    def flush_ends(self) -> None:
        """What has ended is on the disk when this returns."""
        if self._has_ends:
            self.flush()

    def flush(self) -> None:
        self._has_ends = False
        if self._lines:
            self._lines.append("")
            # After a line that a full disk has cut, what follows must not be read as a part of it.
            text = ("\n" * (self._room < 0) + "\n".join(self._lines)).encode()
            self._lines.clear()
            try:
                whole = os.write(self._file, text) == len(text)
            except OSError as error:
                self._complain(error)
                whole = False
            self._room = self._room - len(text) if whole else -1
        if self._room < 0:
            self._rewrite()

    def _read(self) -> None:
        with open(self.path, "rb") as file:
            lines = file.read().split(b"\n")
        for text in lines:
            try:
                self._replay(json.loads(text))
            except (ValueError, TypeError, KeyError, AttributeError):
                continue  # torn: the disk was full, or the machine went down while it was written

    def _replay(self, line: dict[str, Any]) -> None:
        if attempt := line.pop("start", None):
            self.starts.setdefault(attempt, {}).update(line)
            if attempt == self.prepared:
                self.prepared = ""
        elif "prepared" in line:
            self.prepared = line["prepared"]
        elif attempt := line.get("end"):
            self._end(attempt, line["how"])
        elif attempt := line.get("vacated"):
            self.ends[attempt].pop("room", None)
            self.ends[attempt]["left_nothing"] = True
        else:
            self.ends.pop(line["forget"], None)
            self.starts.pop(line["forget"], None)

    def _end(self, attempt: str, end: dict[str, Any]) -> None:
        start = self.starts.pop(attempt, {})
        if checkpoint := start.get("checkpoint"):
            end["checkpoint"] = checkpoint
        if (room := start.get("room")) and not end.get("left_nothing"):
            end["room"] = room
        self.ends[attempt] = end

    def _rewrite(self) -> None:
        """Begin anew with what still matters; the old file stays until the new one is whole."""
        lines: list[dict[str, Any]] = [{"start": attempt, **start} for attempt, start in self.starts.items()]
        lines += [{"end": attempt, "how": end} for attempt, end in self.ends.items()]
        if self.prepared:
            lines.append({"prepared": self.prepared})
        text = b"".join(map(pack, lines))
        temporary, new = f"{self.path}.new", -1
        try:
            new = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
            with open(new, "wb", closefd=False) as file:
                file.write(text)
            os.rename(temporary, self.path)
        except OSError as error:
            self._complain(error)
            self._room = -1  # tried again at the next flush: something may be missing in the file
            if new >= 0:
                os.close(new)
            with contextlib.suppress(OSError):
                os.unlink(temporary)  # half of it takes room that others need
            return
        # Room for as much again, so that a long list of ends is not written over and over.
        self._room = max(MAX_BYTES, len(text))
        os.close(self._file)
        self._file = new

    def _complain(self, error: OSError) -> None:
        # A full disk must not stop a task or hide its end; only a supervisor that follows this one will miss it.
        with contextlib.suppress(OSError):  # what is said here is written to the same disk
            print(f"the journal could not be written: {error}", file=sys.stderr, flush=True)
