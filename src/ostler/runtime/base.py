"""The seam between a worker and the processes on its machine."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Protocol

import msgspec


class Launch(msgspec.Struct, kw_only=True):
    """Everything needed to start one attempt of a task as a process."""

    attempt: str
    task_id: str
    argv: list[str]
    env: dict[str, str]
    base: Mapping[str, str] = {}
    """What all tasks of a worker have in their environment, where `env` does not say otherwise: one object for all,
    which is not changed."""
    files: dict[str, bytes] = {}
    """Written into the attempt's folder before the start, by plain file name."""
    deadline_s: float = 0.0
    """Stopped by the runtime itself after this long, hub or no hub. 0: never."""
    lease_s: float = 0.0
    """Stopped by the runtime itself when contact was not renewed for this long, and not even started if it was not
    before: the order itself renews nothing, since nobody knows how long it has been on its way. 0: never."""
    grace_s: float = 10.0
    memory_mib: int = 0
    """Killed beyond this, where the machine's control groups are ours to divide. 0: no limit."""
    cores: float = 0.0
    asked_mib: int = 0
    devices: tuple[int, ...] = ()
    """What it was given of the worker's offer, for a runtime that has to ask somebody else for it. 0: no need."""
    user: tuple[int, int] | None = None
    """As whom it runs, by the numbers of the user and of the group; None: as the worker does."""
    stop: list[str] = []
    """A command that ends it in its own way, with the same environment and log; `{pid}` in it is the main process. It
    has the grace of the stop; what is still there then gets SIGTERM, and SIGKILL after as long again."""
    warm: str = ""
    """A key, for `argv` that calls a function by `ostler.task.call`: it may run in an interpreter that has run others
    of the same key, which stands for the environment and the user. "": in a process of its own."""
    anywhere: bool = False
    """It is thought to be short, nothing was put into its folder, and nothing says where that is but OSTLER_OUT and
    OSTLER_RESULT. So until it has left something there it need not have one of its own."""
    after: list[str] = []
    """Held back until these attempts, as far as they are held, have ended; then started by the runtime itself, at once.
    For the next task of a busy slot: nobody has to be asked between the two. All are of one line, each launched after
    the one before it."""
    like: str = ""
    """The attempt before it, which this is like in all but its names, whom it comes after, and its variables `own`: so
    no more than that has to be said. "": like none."""
    own: dict[str, str] = {}


class Held(msgspec.Struct, kw_only=True):
    """One attempt that the runtime holds: running, or ended and not yet forgotten."""

    attempt: str
    task_id: str
    started_at: float
    """0 while it waits for those that it comes after."""
    after: list[str] = []
    checkpoint: str = ""
    """Its OSTLER_CHECKPOINT, where that is known."""
    ended: "Ended | None" = None


class Ended(msgspec.Struct, kw_only=True):
    """How an attempt ended; told only when every process of it is gone."""

    attempt: str
    task_id: str
    exit_code: int
    """The process's own; 128 + n for signal n; 126 or 127 when it could not be started."""
    error: str = ""
    stopped: str = ""
    """The reason given to `stop`, where that is what ended it; of the runtime's own, `max_runtime` for a deadline and
    `lost contact` for a lease."""
    finished_at: float = 0.0
    result: str = ""
    """What the function left, in base64, where that is small and came with the end. If not, it is in its file."""
    ran_s: float = 0.0
    """How long its processes were there; 0: nobody knows, and so with the peak."""
    peak_memory_mib: int = 0
    left_nothing: bool = False
    """It has printed nothing, and its folder is as it was made. False: nobody has looked, or it is not."""


class Runtime(Protocol):
    """Runs tasks. A start of the runtime takes back what an earlier worker process left running."""

    async def open(self) -> list[Held]:
        """Everything that is held. An end that shows here is not told by `ends` again."""
        ...

    def prepare(self, launch: Launch) -> None:
        """This launch, without files, may come next: what nobody would notice may be done for it. Of these there is
        one, the last; one that does not come leaves nothing behind."""
        ...

    async def launch(self, launch: Launch) -> None:
        """Start it; a second launch of the same attempt does nothing. A start that fails shows as Ended.

        ValueError for an attempt id or a file name that could lead out of the attempt's folder.
        """
        ...

    async def stop(self, attempt: str, reason: str, grace_s: float) -> None:
        """SIGTERM to the whole tree now, or first its own command; SIGKILL after the grace. Unknown attempts are
        ignored."""
        ...

    async def call_back(self, attempt: str, reason: str) -> None:
        """End it if it waits for others and has not been started; what has been started goes on."""
        ...

    async def renew(self, age_s: float) -> None:
        """The hub was in contact that long ago: leases count from there."""
        ...

    async def forget(self, attempt: str) -> None:
        """The end has been acknowledged: drop the record. The log stays until it is pruned.

        The folder of a task that printed nothing and left nothing is pruned at once.
        """
        ...

    def peaks(self) -> Mapping[str, int]:
        """How much memory each attempt that runs has taken at most so far, in MiB, where that is known."""
        ...

    def samples(self) -> Mapping[str, tuple[int, int]]:
        """What each attempt that runs takes at the moment, where that is known: MiB of memory, and milliseconds of
        processor time since it began."""
        ...

    def ends(self) -> AsyncIterator[Ended]:
        """Every end, once, as it happens."""
        ...

    def folder(self, attempt: str) -> Path:
        """Where the attempt's files are: `log` (its output, stdout and stderr) and what it wrote."""
        ...

    def path(self, attempt: str) -> str:
        """The same as text, which takes a tenth of the time to make."""
        ...

    async def close(self, *, stop_tasks: bool) -> None:
        """Leave. With `stop_tasks` the processes are stopped too; without, they go on and can be taken back."""
        ...
