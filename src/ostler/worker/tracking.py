"""What trackers of experiments find in a task's environment, so that a retried attempt goes on with its run."""

from collections.abc import Mapping

from ostler.domain.tracing import TRACEPARENT, continued

WANDB = "WANDB_"
RUN_ID = "WANDB_RUN_ID"
RESUME = "WANDB_RESUME"


def tracked(asked: Mapping[str, str], task_id: str, attempt: str) -> dict[str, str]:
    """Beside what a spec's environment says: the attempt's span as the parent of whatever the task traces, and a run
    of Weights & Biases that is the task's own through all its attempts."""
    found: dict[str, str] = {}
    if TRACEPARENT in asked:
        found[TRACEPARENT] = continued(asked[TRACEPARENT], attempt)
    if RUN_ID not in asked and asked.get(RESUME) != "never" and any(name.startswith(WANDB) for name in asked):
        found[RUN_ID] = task_id.replace(".", "-")
        # A run that was made up here is not there yet: who must resume it could never begin.
        found[RESUME] = "allow" if asked.get(RESUME) in (None, "must") else asked[RESUME]
    return found
