"""What is old leaves the ledger. It was looked up there beforehand; here it is held against the present: what lives,
or came back, or is needed by what has just come, stays."""

from ostler.core.effects import Effect, Pruned
from ostler.core.events import PruneRequested, Remains
from ostler.core.fleet import Fleet

SCOPE = "pruning"
"""Under which the ledger keeps the ids of jobs that are gone while rows of their tasks are still there."""


def prune(fleet: Fleet, event: PruneRequested) -> list[Effect]:
    gone = fleet.touched.gone
    needed = {need.on_id for need in fleet.touched.needs}
    jobs = [one for one in event.jobs if one.job_id not in fleet.jobs and one.job_id not in needed]
    for one in jobs:
        gone.jobs[one.job_id] = None
        fleet.recount(one.state, -1)
        if one.departed is not None:
            gone.departed.append(one.departed)
        if one.more:
            fleet.keep(SCOPE, one.job_id, one.more)
        _take_rows(fleet, one)
    for one in event.remains:
        fleet.keep(SCOPE, one.job_id, one.more or None)
        _take_rows(fleet, one)
    outputs = [one for one in event.outputs if one.job_id not in fleet.jobs and one.job_id not in needed]
    gone.outputs += [one.key for one in outputs]
    gone.feed += _but_the_newest(fleet, event.feed)
    gone.receipts += event.receipts
    return [Pruned(ref=event.ref, jobs=len(jobs), outputs=[one.key.id for one in outputs])]


def _take_rows(fleet: Fleet, remains: Remains) -> None:
    fleet.touched.gone.tasks += remains.tasks
    fleet.touched.gone.feed += _but_the_newest(fleet, remains.feed)


def _but_the_newest(fleet: Fleet, lines: list[int]) -> list[int]:
    """The next hub numbers on from it, and whoever follows the feed asks for what comes after."""
    return [seq for seq in lines if seq < fleet.feed_seq]
