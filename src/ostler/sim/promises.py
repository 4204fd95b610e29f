"""What a job was promised, seen from the machines: its process begins once, after those it depends on, where there is
room for it, is ended in time, and is tried as often as its terms say."""

from typing import TYPE_CHECKING

from ostler.core.attempt import PREEMPTED_BY
from ostler.domain import states
from ostler.domain.records import AttemptRecord, JobRecord, TaskRecord
from ostler.sim.account import Violation
from ostler.sim.plan import CUT_DOWN, CUT_UP, HUB_STALL

if TYPE_CHECKING:
    from ostler.sim.machine import Machine, Process
    from ostler.sim.puller import Puller
    from ostler.sim.world import World

ENDED_WITHIN_S = 60.0
"""After its budget is spent: until it is told, and has stopped."""
OBEYED_WITHIN_S = 30.0
"""Three heartbeats over a link that loses nothing."""
NOTICED_WITHIN_S = {HUB_STALL: 90.0, CUT_UP: 45.0, CUT_DOWN: 45.0}
"""How long a link may be out of use before either side takes it for lost."""


class Promises:
    def __init__(self) -> None:
        self._depends_on: dict[str, list[str]] = {}
        self._begun: dict[str, float] = {}
        self._nobodys: dict[str, tuple[tuple[object, ...], float]] = {}
        """Attempts that run though they are not current, with the link that they are told by, and since when."""

    def submitted(self, job_id: str, depends_on: list[str]) -> None:
        self._depends_on[job_id] = depends_on

    def started(self, world: "World", machine: "Machine | Puller", process: "Process") -> None:
        if world.in_order and process.attempt in self._begun:
            raise Violation(f"{process.attempt} of {process.task_id} was started twice")
        self._begun[process.attempt] = world.now
        self._comes_after_what_it_depends_on(world, process)
        if world.is_steady or (world.in_order and world.now > world.settled_at):
            _fits(world, machine)

    def _comes_after_what_it_depends_on(self, world: "World", process: "Process") -> None:
        job_id = _job_id(process)
        others = self._depends_on.get(job_id, [])
        if not others or world.account.requeues[job_id]:
            return
        rows = world.ledger.jobs(others)
        early = [row.id for row in rows.values() if row.state != states.SUCCEEDED]
        if early and not any(world.account.requeues[name] for name in early):
            raise Violation(f"{process.task_id} has begun and depends on {early}, which have not succeeded")

    def exited(self, world: "World", process: "Process") -> None:
        begun = self._begun[process.attempt]
        budget_s = _job_of(world, process).terms.max_runtime_s
        patience_s = ENDED_WITHIN_S + max((puller.beat_s for puller in world.pullers), default=0.0)
        if budget_s and begun > world.settled_at and world.now - begun > budget_s + patience_s:
            raise Violation(f"{process.task_id} ran for {world.now - begun:.0f} s; its budget is {budget_s:.0f} s")

    def look(self, world: "World") -> None:
        """What is nobody's is told to end with every heartbeat, as long as there is a link that carries that: also one
        that was slow, once what was sent in those days has arrived, for nothing overtakes it there."""
        weather, before, self._nobodys = world.network.weather, self._nobodys, {}
        if weather.lose or weather.slow or not world.hub_up:
            return
        patience_s = OBEYED_WITHIN_S + max(
            (NOTICED_WITHIN_S.get(kind, 0.0) for kind in world.plan.kinds()), default=0.0
        )
        for machine in [one for one in world.machines if one.session and not world.network.lags(one.session)]:
            link = (machine.session, id(world.fleet))
            for process in machine.processes.values():
                attempt = world.fleet.held.get(process.attempt)
                if process.stopping or (attempt is not None and attempt.is_current()):
                    continue
                known, since = before.get(process.attempt, (link, world.now))
                self._nobodys[process.attempt] = (link, since if known == link else world.now)
                if known == link and world.now > since + patience_s:
                    raise Violation(f"{process.task_id} on {machine.name} is nobody's, and was not told to end")

    def broken(self, world: "World") -> list[str]:
        """What is wrong once all has ended."""
        found = []
        for job in world.ledger.jobs(world.acknowledged).values():
            asked = job.id in world.account.cancelled or self._depends_on.get(job.id)
            if job.state == states.CANCELLED and not asked:
                found.append(f"{job.id} is cancelled, and nobody asked for that")
            for task in world.ledger.tasks_of(job.id):
                attempts = world.ledger.attempts_of(task.id)
                if any(map(_is_displaced, attempts)) and not job.terms.preemptible:
                    found.append(f"{task.id} was displaced, and may not be")
                if job.request.nodes == 1 and world.loses_nothing:
                    found += _tries(world, job, task, attempts)
        return found


def _fits(world: "World", machine: "Machine | Puller") -> None:
    """Where nothing has failed for a while, what runs on a machine is no more than it has."""
    has = machine.capabilities
    requests = [_job_of(world, process).request for process in machine.processes.values()]
    cores = sum(request.cores_milli for request in requests) / 1000
    memory_gb = sum(request.memory_mib for request in requests) / 1024
    if cores > has.cpu_count or memory_gb > has.memory_gb:
        raise Violation(f"{machine.name} runs what needs {cores} cores and {memory_gb} GiB; it has less")
    slots = getattr(machine, "slots", 1)
    if len(requests) > slots:
        raise Violation(f"{machine.name} runs {len(requests)} tasks and has {slots} slots")
    shared = [process.devices for process in machine.processes.values() if not process.whole]
    for process in machine.processes.values():
        if process.whole and any(device in devices for devices in shared for device in process.devices):
            raise Violation(f"{machine.name}: {process.task_id} shares a GPU that it was to have for itself")


def _tries(world: "World", job: JobRecord, task: TaskRecord, attempts: list[AttemptRecord]) -> list[str]:
    """Of a world in which nothing failed but tasks: nothing was lost, and each was tried as often as it may be."""
    lost = {attempt.attempt for attempt in attempts if attempt.state == "lost"}
    if lost - world.network.overtaken.left_out:
        return [f"{task.id} was lost where nothing had failed"]
    # Whoever is displaced spends nothing, even if its process had failed before it could be told.
    failures = sum(attempt.state == states.FAILED and not _is_displaced(attempt) for attempt in attempts)
    rounds = 1 + world.account.requeues[job.id]
    if failures > rounds * (job.terms.max_retries + 1):
        return [f"{task.id} failed {failures} times; max_retries is {job.terms.max_retries}"]
    # A failure that is told of an attempt which was taken for lost counts, and the attempt stays lost.
    given_up = task.state == states.FAILED and task.exit_code and "budget" not in task.reason and rounds == 1
    if given_up and not lost and failures <= job.terms.max_retries:
        return [f"{task.id} was given up after {failures} failures; max_retries is {job.terms.max_retries}"]
    return []


def _is_displaced(attempt: AttemptRecord) -> bool:
    return attempt.stop_reason.startswith(PREEMPTED_BY)


def _job_of(world: "World", process: "Process") -> JobRecord:
    job_id = _job_id(process)
    return world.ledger.jobs([job_id])[job_id]


def _job_id(process: "Process") -> str:
    return process.task_id.partition(".")[0]
