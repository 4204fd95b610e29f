"""What is to be done, after the commit and never before. Plain data; an effect that fails is repaired by the next
comparison."""

import msgspec

from ostler.domain.errors import OstlerError


class AssignTask(msgspec.Struct, kw_only=True):
    worker_id: str
    session: int
    job_id: str
    task_id: str
    attempt: str
    devices: tuple[int, ...] = ()
    index: int | None = None
    remaining_s: float = 0.0
    rank: int | None = None
    hosts: tuple[str, ...] = ()
    """Of a gang: where each rank runs."""
    master_port: int = 0


class CancelTask(msgspec.Struct, kw_only=True):
    worker_id: str
    session: int
    task_id: str
    attempt: str
    reason: str
    grace_s: float = 10.0


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
    task_id: str
    snapshot: str


class Answer(msgspec.Struct, kw_only=True):
    """To whoever sent the event with this ref: done."""

    ref: int
    ids: list[str] = []
    created: bool = True


class Refuse(msgspec.Struct, kw_only=True):
    """To whoever sent the event with this ref: nothing was done, and why."""

    ref: int
    error: OstlerError


Effect = AssignTask | CancelTask | Acknowledge | SayNoWork | CloseSession | HintSnapshot | Answer | Refuse
