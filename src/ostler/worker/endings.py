"""An attempt whose processes are gone, until the hub has acknowledged its result.

The hub first has everything that belongs to the result, then the result: whoever hears of a success finds its log, its
value and its outputs there.
"""

from ostler.domain import states
from ostler.wire.messages import JobAccepted, JobResult, ServiceHealth
from ostler.worker.events import (
    OUTPUTS,
    Acknowledged,
    AwaitRelease,
    CollectOutcome,
    Effect,
    ForgetTask,
    OutcomeCollected,
    Send,
)
from ostler.worker.lacking import KILLED
from ostler.worker.orders import Facts
from ostler.worker.state import Ending, Kept, State
from ostler.worker.verdict import RETURNED, exit_text, failure_text, with_last_line

COLLECT_TRIES = 5
OUTPUT_TRIES = 30
"""Outputs may be the work of days: a hub that is there, but does not take them, is given minutes to do so."""
LONGEST_PAUSE_S = 30.0


def is_whole(result: JobResult, facts: Facts) -> bool:
    """Whether nothing could be added to it, where nothing is to be brought."""
    return result.state == states.SUCCEEDED and not facts.outputs and not facts.baseline_mib


def begin(
    state: State, result: JobResult, facts: Facts, checkpoint: str = "", *, left_nothing: bool = False
) -> list[Effect]:
    """`checkpoint`: the one that was brought to the hub while it ran."""
    ending = Ending(
        result=result,
        call=facts.call and not result.result,
        outputs=facts.outputs,
        left_nothing=left_nothing,
        checkpoint=checkpoint,
        baseline_mib=facts.baseline_mib,
    )
    state.endings[result.attempt] = ending
    effects: list[Effect] = []
    if facts.baseline_mib:
        effects.append(AwaitRelease(task_id=result.task_id, attempt=result.attempt, baseline_mib=facts.baseline_mib))
    # Without a hub there is nobody to collect for: that waits for the next registration.
    return [*effects, collect(ending)] if state.connected else effects


def collect(ending: Ending) -> Effect:
    ending.collecting = True
    result = ending.result
    return CollectOutcome(
        task_id=result.task_id,
        attempt=result.attempt,
        call=ending.call,
        succeeded=result.state == states.SUCCEEDED,
        killed=result.exit_code == KILLED and result.state == states.FAILED,
        outputs=ending.outputs,
        left_nothing=ending.left_nothing,
        after_s=min(float(ending.tries), LONGEST_PAUSE_S),
    )


def collected(state: State, event: OutcomeCollected) -> list[Effect]:
    ending = state.endings.get(event.attempt)
    if ending is None:
        return []
    ending.collecting = False
    if event.unreachable:
        if not state.connected:
            return []
        ending.tries = 0 if event.progressed else ending.tries + 1
        if ending.tries < (OUTPUT_TRIES if event.lacking == OUTPUTS else COLLECT_TRIES):
            return [collect(ending)]
    ending.collected = True
    _complete(ending, event)
    return keep_when_done(state, ending)


def _complete(ending: Ending, event: OutcomeCollected) -> None:
    result = ending.result
    result.result, result.result_id = event.result or result.result, event.result_id
    if result.state in (states.SUCCEEDED, states.FAILED):
        result.metrics = event.metrics
    if result.state != states.SUCCEEDED:
        result.checkpoint_id = event.checkpoint_id or ending.checkpoint
        if event.disk_full and result.state == states.FAILED and result.error == exit_text(result.exit_code or 0):
            # By itself, and perhaps because it could write nothing: not held against it, and tried elsewhere.
            result.state, result.fault = RETURNED, "worker"
            result.error = f"the worker's disk is full; it ended with {with_last_line(result, event.last_line)}"
        elif result.state == states.FAILED:
            result.lacked = event.lacked
            result.error = failure_text(result, event.said, event.lacked_line, event.last_line)
        return
    result.artifact_id = event.artifact_id
    error = event.error or (event.lacking and f"its {event.lacking} could not be brought to the hub")
    if error:
        result.state, result.error = states.FAILED, error


def keep_when_done(state: State, ending: Ending) -> list[Effect]:
    if not ending.collected or ending.baseline_mib:
        return []
    del state.endings[ending.result.attempt]
    return keep(state, ending.result)


def keep(state: State, result: JobResult) -> list[Effect]:
    """Until it is acknowledged."""
    state.results[_key(result.task_id, result.attempt)] = Kept(result)
    return send(state, result)


def acknowledged(state: State, event: Acknowledged) -> list[Effect]:
    state.instead.pop(event.attempt, None)
    kept = state.results.pop(_key(event.task_id, event.attempt), None)
    if kept is None or not kept.result.attempt:
        return []
    result = kept.result
    return [ForgetTask(task_id=result.task_id, attempt=result.attempt, done=result.state == states.SUCCEEDED)]


def send(state: State, message: JobAccepted | JobResult | ServiceHealth) -> list[Effect]:
    return [Send(message)] if state.connected else []


def _key(task_id: str, attempt: str) -> str:
    """A space is in no attempt's name: the task of an answer without an attempt is mistaken for none."""
    return attempt or f"task {task_id}"
