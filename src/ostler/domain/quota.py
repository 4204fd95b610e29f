"""How much one user may have at a time."""

from typing import Annotated

import msgspec

GATEWAY_USER = "gateway"
"""Whose the models' jobs are. No quota limits them: the configuration of the models does."""
Limit = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]


class Quota(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """0: no limit. Each task of an array or a gang counts as a running job."""

    running_gpus: Limit = 0
    running_jobs: Limit = 0
    queued_jobs: Limit = 0

    def exceeded(self, running: int, used_milli: int, nodes: int, milli: int) -> str:
        """The limit that a start of `nodes` tasks with `milli` thousandths of GPUs exceeds; "" if it exceeds none.
        `running` and `used_milli` are what the user has."""
        if self.running_jobs and running + nodes > self.running_jobs:
            return "running_jobs"
        if self.running_gpus and milli and used_milli + milli > 1000 * self.running_gpus:
            return "running_gpus"
        return ""


UNLIMITED = Quota()


class Quotas(msgspec.Struct, forbid_unknown_fields=True):
    default: Quota = Quota()
    users: dict[str, Quota] = {}

    @property
    def limit_what_runs(self) -> bool:
        return any(quota.running_gpus or quota.running_jobs for quota in (self.default, *self.users.values()))

    @property
    def limit_the_queue(self) -> bool:
        return bool(self.default.queued_jobs) or any(quota.queued_jobs for quota in self.users.values())

    def of(self, user: str) -> Quota:
        return UNLIMITED if user == GATEWAY_USER else self.users.get(user, self.default)
