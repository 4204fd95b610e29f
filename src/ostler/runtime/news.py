"""Ends that the worker has not been told of yet. In the journal they are by then.

An end behind which another task begins by itself makes nobody idle, so it may wait a moment for others: the worker, and
through it the hub, is woken once for many. Whose place nobody takes is told of at once, with all that was to be told.
All supervisors of a machine tell at the same moments, by the clock that they share: that is once for all of them.

Standard library only: the supervisor imports this.
"""

import contextlib
from typing import Any

from ostler.runtime.attempts import Folders
from ostler.runtime.clock import Moment, also_asleep
from ostler.runtime.frames import quote
from ostler.runtime.journal import Journal

WITHIN_S = 0.025
MOST = 64
NEVER = float("inf")


class News:
    def __init__(self, journal: Journal, folders: Folders) -> None:
        self._journal = journal
        self._folders = folders
        self._new: list[tuple[dict[str, Any], str, Moment | None]] = []
        """With their text, and since when something of them may have been left: nobody has looked yet."""
        self._untold: list[str] = []
        self.tell_at = NEVER

    def __len__(self) -> int:
        return len(self._new) + len(self._untold)

    def add(self, end: dict[str, Any], made_at: Moment | None = None, *, followed: bool = False) -> None:
        name = end["attempt"]
        text = (
            f'{{"attempt":"{name}","task_id":{quote(end["task_id"])},"exit_code":{end["exit_code"]},'
            f'"error":{quote(end["error"])},"stopped":{quote(end["stopped"])},'
            f'"started_at":{end["started_at"]!r},"finished_at":{end["finished_at"]!r},'
            f'"ran_s":{end.get("ran_s", 0.0):.6f},"peak_memory_mib":{end.get("peak_memory_mib", 0)}'
            + (f',"result":"{end["result"]}"' if end.get("result") else "")
            + (',"left_nothing":true}' if end.get("left_nothing") else "}")
        )
        self._journal.ended(name, end, text)
        self._new.append((end, text, made_at))
        if not followed or len(self) >= MOST:
            self.tell_at = 0.0
        elif self.tell_at == NEVER:
            self.tell_at = (also_asleep() // WITHIN_S + 1) * WITHIN_S

    def take(self, now: float) -> list[str]:
        """Those that are to be told by now, encoded. All of them are on the disk when this returns."""
        if self._new:
            self._journal.flush_ends()
            self._untold += [self._with_what_it_left(end, text, made_at) for end, text, made_at in self._new]
            self._new.clear()
        if now < self.tell_at:
            return []
        untold, self._untold, self.tell_at = self._untold, [], NEVER
        return untold

    def _with_what_it_left(self, end: dict[str, Any], text: str, made_at: Moment | None) -> str:
        """Looked at now and not when it ended: those that waited for that have begun by now."""
        if "left_nothing" in end:
            return text
        name, since = end["attempt"], made_at.by_the_files() if made_at is not None else 0.0
        end["left_nothing"] = since > 0 and self._folders.is_as_new(name, since)
        if end["left_nothing"]:
            if self._folders.is_unseen(name):
                self._folders.release(name, as_new=True)  # the next one has it, and none need be made
                self._journal.vacated(name)
            return f'{text[:-1]},"left_nothing":true}}'
        with contextlib.suppress(OSError):
            self._folders.name(name)
        return text
