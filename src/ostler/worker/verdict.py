"""How an end is told: what a process's exit, and the reason it was stopped for, mean to the hub. Pure."""

import signal

from ostler.domain import states
from ostler.runtime.base import Ended
from ostler.wire.messages import JobResult

RETURNED = "returned"
BY_BUDGET = "max_runtime"
BY_DRAIN = ("drain", "shutdown")
"""Stop reasons of the worker's own, and of a supervisor that is told to leave."""
BY_CANCEL = "cancel: "
"""What the hub's reasons begin with when they are given to the runtime: never mistaken for one of ours."""
BY_RECALL = "called back"
"""By the hub, before it had begun; or by the worker, which says why after it."""
BY_LIVENESS = "liveness failed: "
BY_LEASE = "lost contact"
"""The runtime's own, for a task that must never run twice at once."""
NOT_STARTED = (126, 127)
MAX_ERROR_CHARACTERS = 400


def outcome(end: Ended, cancelled: str | None = None) -> JobResult:
    """What the hub is told of this end; `cancelled` is the hub's own reason, where it asked for it."""
    state, error, fault = _verdict(end, cancelled)
    return JobResult(
        task_id=end.task_id,
        attempt=end.attempt,
        state=state,
        exit_code=end.exit_code,
        error=error,
        fault=fault,
        result=end.result,
        run_s=end.ran_s,
        peak_memory_mib=end.peak_memory_mib,
    )


def _verdict(end: Ended, cancelled: str | None) -> tuple[str, str, str]:
    if end.stopped:
        # A stop of our own that met a cancel: the hub has already given the task up.
        is_ours = end.stopped in BY_DRAIN or end.stopped.startswith(BY_LIVENESS)
        reason = BY_CANCEL + cancelled if cancelled is not None and is_ours else end.stopped
        if BY_BUDGET in (reason, cancelled):
            return states.FAILED, BY_BUDGET, ""
        if reason.startswith(BY_RECALL):
            return RETURNED, reason, "drain"
        if reason in BY_DRAIN:
            return RETURNED, "the worker is shutting down", "drain"
        if reason.startswith(BY_LIVENESS):
            return states.FAILED, reason, ""
        if reason == BY_LEASE:
            return RETURNED, "stopped, because contact with the hub was lost", "worker"
        return states.CANCELLED, reason.removeprefix(BY_CANCEL), ""
    if end.error and end.exit_code not in NOT_STARTED:
        # Nobody saw how it ended: the machine's fault, not the task's.
        return RETURNED, end.error, "worker"
    if end.exit_code == 0:
        return states.SUCCEEDED, "", ""
    return states.FAILED, end.error or exit_text(end.exit_code), ""


def failure_text(result: JobResult, said: str, lacked_line: str, last_line: str) -> str:
    """The reason of a failed task. `said` is the error file of task/steps.py: the reason for the exit code, if it is
    not the command's own, then a line for each later failure."""
    if result.error != exit_text(result.exit_code or 0):
        return result.error  # a stop, not the exit code, is the cause: the hub must recognise it
    own, *later = said.split("\n")
    reason = own or with_lacked(result, lacked_line)
    if not reason:
        # After a failed epilog, the last line of the log is not the command's.
        reason = result.error if later else with_last_line(result, last_line)
    return "; ".join([reason, *filter(None, later)])


def with_last_line(result: JobResult, line: str) -> str:
    """An exit code that says nothing more by itself is told with what the task said last."""
    plain = f"exit code {result.exit_code}"
    return f"{plain}: {line}" if line and result.error == plain else result.error


def with_lacked(result: JobResult, line: str) -> str:
    """Of one that ran out of something: what, and how it said so."""
    name = {"vram": "GPU memory", "memory": "memory"}.get(result.lacked)
    return f"out of {name} (exit code {result.exit_code}): {line}"[:MAX_ERROR_CHARACTERS] if name else ""


def exit_text(exit_code: int) -> str:
    """128 + n stands for signal n, from the runtime as from a shell."""
    try:
        return f"exit code {exit_code} ({signal.Signals(exit_code - 128).name})"
    except ValueError:
        return f"exit code {exit_code}"
