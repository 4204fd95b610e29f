"""The seam between a bridge and somebody else's scheduler: a batch system that is given jobs, and says how they are."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Literal, Protocol

import msgspec

Phase = Literal["waiting", "running", "over"]
Fate = Literal["exited", "out of time", "out of memory", "cancelled", "preempted", "handed back", "lost"]
"""How a job that is over came to its end: by itself, or by whose doing; lost: its node failed; handed back: the batch
system itself could not go on with it."""
Signal = Literal["", "TERM", "KILL"]


class Unanswered(Exception):
    """The batch system did not answer: nothing is known, and it is asked again later."""


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What a job takes; jobs that ask for the same may be submitted as one."""

    node: str
    cores: int = 1
    memory_mib: int = 0
    """0: whatever the batch system gives to whoever does not say."""
    gpus: int = 0
    gpu_type: str = ""
    limit_s: float = 0.0
    """Ended by the batch system itself after this long, at the latest. 0: by its own limit."""


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of a task on its way to the batch system."""

    attempt: str
    task_id: str
    script: Path
    """Run by `/bin/sh` on the node; it finds all else beside it."""
    ask: Ask
    call: bool = False
    """It calls a function, which may be over soon: for a batch system that has something lighter than a job."""


class Refusal(msgspec.Struct, frozen=True):
    """Why a submission was not taken."""

    text: str
    lasting: bool
    """To submit it again would be of no use."""


class Sight(msgspec.Struct, frozen=True, kw_only=True):
    """One job, as the batch system tells of it."""

    phase: Phase
    reason: str = ""
    """Why it waits, or how it ended, in the batch system's own words."""
    fate: Fate = "exited"
    exit_code: int | None = None
    """Of one that is over, where it is known; 128 + n for signal n."""


class Node(msgspec.Struct, kw_only=True):
    """One machine of the batch system: what it has, and what is free of it by the batch system's own account."""

    name: str
    address: str = ""
    cores: int = 0
    free_cores: int = 0
    memory_mib: int = 0
    """0: nobody has told the batch system, and no job may ask for any."""
    free_mib: int = 0
    gpus: int = 0
    free_gpus: int = 0
    gpu_type: str = ""
    limit_s: float = 0.0
    """No job there may run for longer. 0: for as long as it likes."""
    closed: str = ""
    """Why it takes no jobs, where it does not."""
    arch: str = ""
    labels: dict[str, str] = {}


class BatchSystem(Protocol):
    """Each of these may raise Unanswered; then nothing is known to have happened."""

    name: str
    """As people call it."""

    @property
    def hurry_s(self) -> float:
        """What it holds now is worth another look after so long; inf: there is no hurry."""
        ...

    async def open(self) -> None:
        """See that it is there, before anything else; an error that says what an operator has to do, if it is not."""
        ...

    async def nodes(self) -> list[Node]:
        """What it offers now."""
        ...

    async def submit(self, jobs: Sequence[Submission]) -> dict[str, str | Refusal]:
        """By attempt: the job's id, or why it was not taken. Those that are not in it may have been taken or not; each
        carries its attempt's name, by which `adopt` finds it."""
        ...

    async def look(self, jobs: Collection[str]) -> dict[str, Sight]:
        """How these jobs are, by their ids. Of what is over it may know nothing any more."""
        ...

    async def stop(self, jobs: Collection[str], signal: Signal) -> None:
        """Send a signal to every process of these jobs; "": end them, begun or not. Unknown ones are ignored."""
        ...

    async def adopt(self) -> dict[str, dict[str, Sight]]:
        """Everything of this bridge that it knows: by attempt, its jobs by their ids."""
        ...
