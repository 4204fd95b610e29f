"""What a task leaves on the way to its end follows it to its next attempt, on whatever machine that is."""

from ostler.core.effects import DropCheckpoint, Effect
from ostler.core.fleet import Fleet, Task, Worker


def brought(fleet: Fleet, task: Task, blob: str, worker: Worker, now: float) -> list[Effect]:
    """A worker has brought the task's files to the hub as this blob."""
    if not blob or blob == task.checkpoint:
        return []
    old = _forget(fleet, task)
    task.checkpoint, task.checkpoint_by = blob, worker.id
    if task.holder is not None:
        task.holder.saved = now
    fleet.checkpoints[blob] = fleet.checkpoints.get(blob, 0) + 1
    fleet.touch_task(task)
    return old


def dropped(fleet: Fleet, task: Task) -> list[Effect]:
    """The task begins from nothing, should it ever begin again."""
    found = _forget(fleet, task)
    task.checkpoint = task.checkpoint_by = ""
    return found


def revived(fleet: Fleet, task: Task) -> None:
    if task.checkpoint:
        fleet.checkpoints[task.checkpoint] = fleet.checkpoints.get(task.checkpoint, 0) + 1


def left_memory(fleet: Fleet, task: Task) -> None:
    """It has ended. Its row still names the blob, for a requeue; how long that is kept is the store's business."""
    _count_down(fleet, task.checkpoint)


def _forget(fleet: Fleet, task: Task) -> list[Effect]:
    return [DropCheckpoint(task.checkpoint)] if _count_down(fleet, task.checkpoint) else []


def _count_down(fleet: Fleet, blob: str) -> bool:
    """True when no task in memory names it any more."""
    if not blob:
        return False
    fleet.checkpoints[blob] -= 1
    if fleet.checkpoints[blob]:
        return False
    del fleet.checkpoints[blob]
    return True
