"""What is to be done, after the commit and never before. Plain data; an effect that fails is repaired by the next
comparison."""

from typing import Any

import msgspec

from ostler.domain.errors import OstlerError
from ostler.domain.records import ArtifactRecord


class AssignTask(msgspec.Struct, kw_only=True):
    worker_id: str
    session: int
    job_id: str
    task_id: str
    attempt: str
    devices: tuple[int, ...] = ()
    whole: bool | None = None
    """Whether the devices are its own, where that does not follow from its spec."""
    vram_mib: int = 0
    memory_mib: int = 0
    """What is reserved for it, where that does not follow from its spec."""
    index: int | None = None
    remaining_s: float = 0.0
    rank: int | None = None
    hosts: tuple[str, ...] = ()
    """Of a gang: where each rank runs."""
    master_port: int = 0
    checkpoint: str = ""
    checkpoint_by: str = ""
    after: tuple[str, ...] = ()
    """Attempts there whose end it waits for."""


class CancelTask(msgspec.Struct, kw_only=True):
    worker_id: str
    session: int
    task_id: str
    attempt: str
    reason: str
    grace_s: float = 10.0
    unstarted: bool = False
    """Only if it has not been started."""


class Acknowledge(msgspec.Struct, kw_only=True):
    worker_id: str
    session: int
    of: str
    task_id: str = ""
    attempt: str = ""
    sent_at: str | float | int | None = None


class SayNoWork(msgspec.Struct, kw_only=True):
    worker_id: str
    session: int


class CloseSession(msgspec.Struct, kw_only=True):
    """This socket no longer speaks for the worker: another one took over its name, or it was silent for too long."""

    worker_id: str
    session: int
    taken_over: bool


class HintSnapshot(msgspec.Struct, kw_only=True):
    """This worker is likely to need a snapshot soon."""

    worker_id: str
    session: int
    job_id: str
    task_id: str
    snapshot: str


class Answer(msgspec.Struct, kw_only=True):
    """To whoever sent the event with this ref: done."""

    ref: int
    ids: list[str] = []
    created: bool = True


class Claimed(msgspec.Struct, kw_only=True):
    """To a machine that asked: this task is its own."""

    ref: int
    job_id: str
    task_id: str
    attempt: str
    devices: tuple[int, ...] = ()
    has_devices: bool = False
    """The machine has GPUs, so that those of others must be hidden."""
    index: int | None = None
    lease_s: float = 0.0
    checkpoint: str = ""


class NothingToClaim(msgspec.Struct, kw_only=True):
    """To a machine that asked: nothing that waits fits there. `job_id` is the one that came nearest."""

    ref: int
    job_id: str = ""
    reason: str = ""


class Beaten(msgspec.Struct, kw_only=True):
    """To a machine that said that it still runs its task."""

    ref: int
    cancel: bool = False


class ManifestChange(msgspec.Struct):
    """One value of a job that an apply changes. The key is a field of the spec; those inside tables are apart."""

    key: str
    old: Any
    """None: the key is not there."""
    new: Any


class ManifestLine(msgspec.Struct, kw_only=True):
    """One job of a manifest: inserted, unchanged, updated or absent."""

    job_id: str
    name: str
    change: str
    state: str
    differs: list[str] = []
    """The fields of its spec that changed."""
    changes: list[ManifestChange] = []
    """In a plan: their old and new values."""


class Followed(msgspec.Struct, kw_only=True):
    """To whoever brought a manifest: what changed, or would."""

    ref: int
    lines: list[ManifestLine] = []


class KeepArtifact(msgspec.Struct):
    """Packed outputs became a task's artifact."""

    record: ArtifactRecord


class AskYield(msgspec.Struct):
    """To the gateway: a job wants the room of this idle model's process."""

    job_id: str
    wanted_by: str


class DropCheckpoint(msgspec.Struct):
    """No task begins from this blob any more."""

    blob: str


class Refuse(msgspec.Struct, kw_only=True):
    """To whoever sent the event with this ref: nothing was done, and why."""

    ref: int
    error: OstlerError


class Pruned(msgspec.Struct, kw_only=True):
    """To whoever said that something may go: how many jobs did, and whose artifacts nobody may need any more."""

    ref: int
    jobs: int = 0
    outputs: list[str] = []


Reply = Answer | Claimed | NothingToClaim | Beaten | Followed | Pruned | Refuse
"""Each to the one event that carried its ref."""
ToWorker = AssignTask | CancelTask | Acknowledge | SayNoWork | CloseSession | HintSnapshot
"""Each to one worker's connection."""
Effect = ToWorker | Reply | KeepArtifact | DropCheckpoint | AskYield
