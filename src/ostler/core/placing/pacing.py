"""Plain workers are sent one task at a time, the next after `job_accepted`.

A task for such a worker is placed like any other and holds its capacity from then on. Only its assignment waits here
until the worker may have it. A `ready_for_work` is answered by the first assignment that waits.
"""

from ostler.core import attempts, outcomes
from ostler.core.attempts import ACCEPT_WITHIN_S, assignment
from ostler.core.effects import Effect
from ostler.core.fleet import Attempt, Fleet, Worker
from ostler.core.timers import ACCEPTANCE


def send(fleet: Fleet, attempt: Attempt, now: float) -> list[Effect]:
    """The assignment of an attempt that has just begun; nothing yet where it has to wait."""
    worker = fleet.workers[attempt.worker_id]
    if attempt.unsent:
        fleet.may_be_sent[worker.id] = None
        return []
    return [_assigned(fleet, attempt, now)]


def send_waiting(fleet: Fleet, now: float) -> list[Effect]:
    """The assignments that workers may have by now. Only workers of which something has changed are looked at."""
    names, fleet.may_be_sent = fleet.may_be_sent, {}
    effects: list[Effect] = []
    for worker in map(fleet.workers.__getitem__, names):
        for attempt in _unsent(worker) if worker.connected else ():
            if not worker.questions and worker.awaits_acceptance():
                break
            attempt.unsent = False
            worker.count_answer()
            effects.append(_assigned(fleet, attempt, now))
    return effects


def withdraw(fleet: Fleet, now: float) -> list[Effect]:
    """Take back what was not sent and is not to be sent any more: it was stopped, or its worker takes nothing new."""
    effects: list[Effect] = []
    for name in fleet.may_be_sent:
        worker = fleet.workers[name]
        for attempt in _unsent(worker):
            task = attempt.task
            if task is None or attempt.phase == "stopping" or not attempt.is_current():
                attempts.release(fleet, attempt, "gone", "", now)
            elif worker.connected and not worker.is_open:
                reason = f"{name} takes nothing new; the task was not sent to it"
                task.attempt = ""
                attempts.release(fleet, attempt, "returned", reason, now)
                effects += outcomes.again(fleet, task, reason, now)
    return effects


def _unsent(worker: Worker) -> list[Attempt]:
    return [attempt for attempt in worker.attempts.values() if attempt.unsent]


def _assigned(fleet: Fleet, attempt: Attempt, now: float) -> Effect:
    fleet.timers.add(now + ACCEPT_WITHIN_S, ACCEPTANCE, attempt.id)
    return assignment(fleet, attempt)
