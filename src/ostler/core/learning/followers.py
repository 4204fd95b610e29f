"""Jobs whose needs change while they wait: by what their kind is seen to take, or by what was too little."""

from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ostler.core.fleet import Job

Needs = tuple[int, int]
"""VRAM and memory in MiB."""
AT_ONCE = 256
"""As many as one event may cost; the next one sees to more of them."""


class _OfKind:
    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.needs: Needs = (0, 0)
        """As the kind's were when they were looked at last."""
        self.behind = 0
        """How many, from the first on, may still ask for what was needed before."""


class Followers:
    def __init__(self) -> None:
        self._kinds: dict[int, _OfKind] = {}
        self.outgrown_mib: dict[str, int] = {}
        """By job: VRAM that one of its tasks had and died of; the next attempt gets more."""

    def enter(self, job: "Job") -> None:
        if job.terms.auto is not None and job.kind:
            self._kinds.setdefault(job.kind, _OfKind()).jobs[job.id] = job

    def leave(self, job: "Job") -> None:
        self.outgrown_mib.pop(job.id, None)
        kind = self._kinds.get(job.kind)
        if kind is not None and kind.jobs.pop(job.id, None) is not None and not kind.jobs:
            del self._kinds[job.kind]

    def has(self, kind: int) -> bool:
        return kind in self._kinds

    def to_refit(self, kind: int, needs: Needs) -> "list[Job]":
        """Those whose turn it is to ask for what their kind needs now."""
        found = self._kinds[kind]
        if needs != found.needs:
            found.needs, found.behind = needs, len(found.jobs)
        turn = list(islice(found.jobs.values(), min(found.behind, AT_ONCE)))
        found.behind -= len(turn)
        for job in turn:
            found.jobs[job.id] = found.jobs.pop(job.id)
        return turn
