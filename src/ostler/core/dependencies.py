"""Jobs that wait for other jobs: released when those succeed, cancelled with the reason when one cannot any more."""

from collections.abc import Mapping

from ostler.core.events import JobsSubmitted, NewJob
from ostler.core.fleet import Fleet, Job
from ostler.core.jobs_end import cancel_job
from ostler.domain import states
from ostler.domain.errors import BadInput


def problem(fleet: Fleet, event: JobsSubmitted, fresh: Mapping[str, NewJob]) -> BadInput | None:
    """What is wrong with what these jobs wait for: unknown names, and circles."""
    waits = False
    for new in fresh.values():
        for name in new.depends_on:
            waits = True
            known = name in fresh or name in fleet.jobs or name in event.known or name in fleet.touched.new_jobs
            if not known and name not in event.departed:
                return BadInput(f"depends_on: there is no job {name}", [("depends_on", f"there is no job {name}")])
    circle = _circle(fresh) if waits else []
    if circle:
        told = " → ".join(circle)
        return BadInput(f"depends_on: these jobs wait for each other: {told}", [("depends_on", f"a circle: {told}")])
    return None


def _circle(fresh: Mapping[str, NewJob]) -> list[str]:
    """A circle among jobs that are submitted together; jobs that exist cannot wait for newer ones."""
    clear: set[str] = set()
    for start, new in fresh.items():
        if not new.depends_on:
            continue  # nothing waits in a circle by itself, and most jobs wait for none
        path: list[str] = []
        stack = [(start, iter(fresh[start].depends_on))]
        path.append(start)
        while stack:
            name, rest = stack[-1]
            following = next((one for one in rest if one in fresh and one not in clear), None)
            if following is None:
                stack.pop()
                path.pop()
                clear.add(name)
            elif following in path:
                return [*path[path.index(following) :], following]
            else:
                stack.append((following, iter(fresh[following].depends_on)))
                path.append(following)
    return []


def hold(fleet: Fleet, job: Job, depends_on: list[str], ended: Mapping[str, str], now: float) -> None:
    """Keep a new job back until these have succeeded; `ended` gives the state of those that have left memory."""
    waits_for = {name for name in depends_on if ended.get(name) != states.SUCCEEDED}
    for name in sorted(waits_for):
        live = fleet.jobs.get(name)
        state = live.state if live is not None else ended.get(name, "")
        if live is None or state in states.TERMINAL:
            if state == states.SUCCEEDED:
                waits_for.discard(name)
                continue
            job.blocked_on = waits_for
            cancel_job(fleet, job, f"depends on {name}, which is {state}", now)
            return
        fleet.dependents.setdefault(name, []).append(job.id)
    job.blocked_on = waits_for or None


def resolve(fleet: Fleet, now: float) -> None:
    """Let go what waited for the jobs that ended in this batch."""
    while fleet.ended_now:
        ended = fleet.ended_now.pop()
        if ended.state not in states.TERMINAL:
            continue  # requeued in the same batch: there is still hope
        for name in fleet.dependents.pop(ended.id, []):
            job = fleet.jobs.get(name)
            if job is None or not job.blocked_on or job.state in states.TERMINAL:
                continue
            if ended.state != states.SUCCEEDED:
                cancel_job(fleet, job, f"depends on {ended.id}, which is {ended.state}", now)
                continue
            job.blocked_on.discard(ended.id)
            fleet.touch_job(job)
            if not job.blocked_on:
                job.blocked_on = None
                fleet.begin_wait(job, now)
                fleet.line_up(job)
                fleet.watch_wait(job)
                if job.snapshot:
                    fleet.hints.append(job)


def hold_again(fleet: Fleet, job: Job, blocked_on: list[str]) -> None:
    """After a restart."""
    waits_for = set(blocked_on)
    for name in sorted(waits_for):
        fleet.dependents.setdefault(name, []).append(job.id)
    job.blocked_on = waits_for or None
