"""The states of a task and the only moves between them. An illegal move raises: it is always a bug."""

from typing import Final

from ostler.domain.errors import IllegalMove

PENDING: Final = "pending"
ASSIGNED: Final = "assigned"
RUNNING: Final = "running"
ORPHANED: Final = "orphaned"
SUCCEEDED: Final = "succeeded"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"
UNSCHEDULABLE: Final = "unschedulable"

PLACED: Final = (ASSIGNED, RUNNING, ORPHANED)
LIVE: Final = (PENDING, *PLACED)
TERMINAL: Final = (SUCCEEDED, FAILED, CANCELLED, UNSCHEDULABLE)
STATES: Final = LIVE + TERMINAL

MOVES: dict[str, dict[str, str]] = {
    PENDING: {
        ASSIGNED: "placed on a worker",
        RUNNING: "its last attempt came back before it was placed again",
        SUCCEEDED: "the kept result of its last attempt came in",
        FAILED: "the kept result of its last attempt came in",
        CANCELLED: "cancelled",
        UNSCHEDULABLE: "its scheduling timeout ran out",
    },
    ASSIGNED: {
        RUNNING: "the worker accepted it",
        PENDING: "not accepted in time, handed back, or requeued",
        ORPHANED: "its worker went silent",
        SUCCEEDED: "the worker reported success",
        FAILED: "the worker reported failure and no retry is left",
        CANCELLED: "cancelled",
    },
    RUNNING: {
        PENDING: "lost, handed back, retried or requeued",
        ORPHANED: "its worker went silent",
        SUCCEEDED: "the worker reported success",
        FAILED: "it failed, or its budget ran out",
        CANCELLED: "cancelled",
    },
    ORPHANED: {
        RUNNING: "its worker came back with it",
        ASSIGNED: "its worker came back with it, and it has not begun",
        PENDING: "its worker came back without it, or its grace ran out",
        SUCCEEDED: "its worker came back with its result",
        FAILED: "its worker came back with its failure, or no attempt is left",
        CANCELLED: "cancelled",
    },
    SUCCEEDED: {PENDING: "requeued by an operator"},
    FAILED: {PENDING: "requeued by an operator"},
    CANCELLED: {PENDING: "requeued by an operator"},
    UNSCHEDULABLE: {PENDING: "requeued by an operator"},
}

STATUS = {
    PENDING: "pending",
    ASSIGNED: "claimed",
    RUNNING: "running",
    ORPHANED: "running",
    SUCCEEDED: "completed",
    FAILED: "failed",
    CANCELLED: "cancelled",
    UNSCHEDULABLE: "unschedulable",
}
"""The training API's spelling of each state."""


def move(task_id: str, old: str, new: str) -> str:
    """The new state, or IllegalMove."""
    if new not in MOVES[old]:
        raise IllegalMove(f"task {task_id}: no move from {old} to {new}")
    return new
