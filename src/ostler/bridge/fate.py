"""What became of an attempt, from what the batch system says and what its script has left. Pure."""

import signal

import msgspec

from ostler.bridge.base import Sight
from ostler.bridge.record import Exit, Record
from ostler.bridge.script import NOT_ITS_TURN
from ostler.runtime.base import Ended

SIGNALLED = 128
TERMINATED = SIGNALLED + signal.SIGTERM
KILLED = SIGNALLED + signal.SIGKILL
OUT_OF_TIME = "max_runtime"
CALLED_BACK = "called back"
"""A task that ends for this reason is handed back at no cost."""


class Found(msgspec.Struct, kw_only=True):
    """What lies in the attempt's folder when its job is over."""

    began: bool = False
    exit: Exit | None = None
    stopped: str = ""


def conclude(attempt: str, record: Record, sight: Sight | None, found: Found, system: str) -> tuple[Ended, str]:
    """Its end, and a sentence for people where its exit code alone would not say enough. `sight` is None where the
    batch system knows nothing of it any more."""
    job = f"{system} job {record.job}" if record.job else f"its job in {system}"
    code, error, stopped, said = _code(record, sight, found), "", record.stopped or found.stopped, ""
    fate = sight.fate if sight is not None else "exited"
    if stopped:
        pass
    elif fate == "out of time":
        stopped = OUT_OF_TIME if _by_its_own_budget(record) else ""
        said = "" if stopped else f"{job} was ended by {system}: its time limit was over"
    elif fate == "preempted":
        stopped = f"{CALLED_BACK}: {system} gave its room to another job"
    elif sight is not None and fate == "handed back" and not _by_itself(found):
        stopped = f"{CALLED_BACK}: {sight.reason}"
    elif fate == "out of memory":
        said = f"{job} was killed: it took more memory than it had asked for{_asked(record)}"
    elif fate == "cancelled":
        said = f"{job} was cancelled there, by somebody else"
    elif _is_lost(sight, found) or (found.exit is None and not _is_told(sight, found)):
        # Whatever a shell said that did not find its script: it is not what the task has ended with.
        code = code if found.exit is not None else KILLED
        error = _unseen(job, sight, found)
    end = Ended(attempt=attempt, task_id=record.task_id, exit_code=code, error=error, stopped=stopped)
    end.ran_s = found.exit.ran_s if found.exit is not None else 0.0
    return end, said


def is_settled(record: Record, sight: Sight | None, found: Found) -> bool:
    """Whether that is all there will be. What a node has just written may take a while to be seen from here."""
    killed = sight is not None and sight.fate != "exited"
    return found.exit is not None or bool(record.stopped or found.stopped) or killed


def _code(record: Record, sight: Sight | None, found: Found) -> int:
    if found.exit is not None:
        return found.exit.code
    if record.stopped and (record.fenced or not found.began):
        return TERMINATED
    if sight is not None and sight.exit_code is not None and (sight.exit_code or _is_told(sight, found)):
        return sight.exit_code
    return TERMINATED if sight is not None and sight.fate in ("out of time", "cancelled") else KILLED


def _is_told(sight: Sight | None, found: Found) -> bool:
    """Whether the batch system says how it ended; the attempt itself may have had no room to write that down."""
    return found.began and sight is not None and sight.exit_code not in (None, NOT_ITS_TURN)


def _is_lost(sight: Sight | None, found: Found) -> bool:
    """Its node failed, or was taken away, and it had not ended by itself before: what it left then was a signal's."""
    return sight is not None and sight.fate == "lost" and not _by_itself(found)


def _by_itself(found: Found) -> bool:
    return found.exit is not None and found.exit.code < SIGNALLED


def _by_its_own_budget(record: Record) -> bool:
    return bool(record.deadline_s) and record.ask.limit_s >= record.deadline_s


def _asked(record: Record) -> str:
    return f" ({record.ask.memory_mib} MiB)" if record.ask.memory_mib else ""


def _unseen(job: str, sight: Sight | None, found: Found) -> str:
    """Nobody saw how it ended."""
    if sight is not None and sight.fate == "lost":
        return f"the node of {job} failed ({sight.reason})"
    if sight is not None and not found.began:
        return f"{job} ended before its script began: the bridge's folder must be there on the node, too"
    if sight is None:
        return f"{job} is not known there any more, and left no exit code"
    return f"{job} is over, and left no exit code ({sight.reason or 'no reason given'})"
