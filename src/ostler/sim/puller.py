"""A model machine that only claims: it polls, runs one task at a time, says that it lives, and kills by itself what it
cannot vouch for any more."""

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from ostler.core.effects import Answer, Beaten, Claimed, Refuse, Reply
from ostler.core.events import ClaimBeat, ClaimEnded, ClaimRequested, TaskEnded
from ostler.domain.worker import Capabilities
from ostler.sim.machine import STOPS_WITHIN_S, Process
from ostler.sim.plan import PlannedMachine

if TYPE_CHECKING:
    from ostler.sim.world import World

POLL_S = 10.0
TRY_AGAIN_S = 5.0
SAY_AGAIN_S = 30.0
"""How long it waits at most before it tells of an end again."""
SPARE_S = 20.0
"""Between the latest end of a process that was cut off and the end of its lease."""
SAID_AGAIN = 0.2
"""How often an end is said once more although it was answered."""


class Run(msgspec.Struct, eq=False):
    """What it has claimed, until the hub has heard of its end or it is given up."""

    process: Process
    lease_s: float
    heard_at: float
    """When it sent the last request that the hub has answered."""
    end: TaskEnded | None = None


class Puller:
    def __init__(self, world: "World", planned: PlannedMachine) -> None:
        self.world = world
        self.name = planned.name
        self.stubborn = planned.stubborn
        self.beat_s = planned.beat_s
        self.capabilities = msgspec.structs.replace(planned.offer, hostname=planned.name)
        self.processes: dict[str, Process] = {}
        self.run: Run | None = None
        self.polls = 0
        self._cut_until = 0.0

    # The link

    @property
    def is_cut_off(self) -> bool:
        return self.world.now < self._cut_until

    def cut_off(self, seconds: float) -> None:
        self._cut_until = max(self._cut_until, self.world.now + seconds)

    def mend(self) -> None:
        self._cut_until = 0.0

    # Asking for work

    def poll(self) -> None:
        """One claim; the next follows from its answer. Whoever polls anew ends what was asked before."""
        self.polls += 1
        number, sent_at = self.polls, self.world.now

        def answered(reply: Reply | None) -> None:
            if number != self.polls:
                return
            if isinstance(reply, Claimed):
                self._begin(reply, sent_at)
            else:
                self._poll_in(self.world.rng.uniform(0.75, 1.25) * POLL_S)

        said = self._seen_now()
        self.world.request(
            self,
            lambda ref: ClaimRequested(ref=ref, worker_id=self.name, capabilities=said, capability=b"{}"),
            answered,
        )

    def _poll_in(self, seconds: float) -> None:
        number = self.polls
        self.world.after(seconds, lambda: self.poll() if number == self.polls else None)

    def _seen_now(self) -> Capabilities:
        """Programs that are not ours come and go."""
        total = self.capabilities.memory_gb
        return msgspec.structs.replace(
            self.capabilities, memory_available_gb=total * self.world.rng.choice((0.6, 1.0, 1.0))
        )

    # Running

    def _begin(self, claimed: Claimed, sent_at: float) -> None:
        world = self.world
        whole = not world.shares(claimed.task_id)
        ends_at = world.now + world.duration(claimed.task_id)
        process = Process(claimed.task_id, claimed.attempt, claimed.devices, whole, ends_at)
        run = self.run = Run(process, claimed.lease_s, sent_at)
        self.processes[process.attempt] = process
        world.started(self, process)
        world.at(ends_at, partial(self._exit, run))
        self._watch(run)
        self._beat(run)

    def _exit(self, run: Run) -> None:
        if self.run is run and not run.process.stopping:
            fails = self.world.rng.random() < self.world.failure_rate
            self._ended(run, "failed" if fails else "succeeded")

    def _watch(self, run: Run) -> None:
        """Whatever it cannot vouch for it must not leave running."""
        if self.run is not run or run.end is not None or self.stubborn:
            return
        over_at = run.heard_at + run.lease_s - STOPS_WITHIN_S - SPARE_S
        if over_at <= self.world.now:
            self._stop(run, "")
        else:
            self.world.at(over_at, partial(self._watch, run))

    def _beat(self, run: Run) -> None:
        if self.run is not run:
            return
        process, sent_at = run.process, self.world.now

        def answered(reply: Reply | None) -> None:
            if self.run is not run:
                return
            match reply:
                case Beaten():
                    run.heard_at = max(run.heard_at, sent_at)
                    if reply.cancel:
                        self._stop(run, "failed")
                case Refuse() if not self.stubborn:
                    self._stop(run, "")
                    return
            self.world.after(
                TRY_AGAIN_S if reply is None else min(self.beat_s, run.lease_s / 2), partial(self._beat, run)
            )

        self.world.request(
            self,
            lambda ref: ClaimBeat(ref=ref, worker_id=self.name, task_id=process.task_id, attempt=process.attempt),
            answered,
        )

    def _stop(self, run: Run, state: str) -> None:
        """End its process, and tell the hub that; without a state it is given up, and nobody hears of it."""
        if not run.process.stopping and run.end is None:
            run.process.stopping = True
            self.world.after(self.world.rng.uniform(0, STOPS_WITHIN_S), partial(self._stopped, run, state))

    def _stopped(self, run: Run, state: str) -> None:
        if self.run is run:
            if state:
                self._ended(run, state)
            else:
                self._rest()

    # The end

    def _ended(self, run: Run, state: str) -> None:
        process = run.process
        self.processes.pop(process.attempt, None)
        self.world.exited(process, state)
        run.end = TaskEnded(
            worker_id=self.name,
            session=0,
            task_id=process.task_id,
            attempt=process.attempt,
            state=state,
            exit_code={"succeeded": 0, "failed": 1}.get(state),
            fault="drain" if state == "returned" else "",
        )
        self._tell(run, run.end)

    def _tell(self, run: Run, end: TaskEnded) -> None:
        """Until the hub has answered, or cannot have kept the lease."""
        if self.run is not run:
            return
        if self.world.now >= run.heard_at + run.lease_s and not self.stubborn:
            self._rest()
            return

        def answered(reply: Reply | None) -> None:
            if isinstance(reply, Answer):
                self.world.taken(end)
            if self.run is not run:
                return
            if reply is None:
                self.world.after(self.world.rng.uniform(1, SAY_AGAIN_S), partial(self._tell, run, end))
                return
            self._rest()
            if self.world.rng.random() < SAID_AGAIN:
                self.world.request(self, lambda ref: ClaimEnded(ref=ref, end=end), partial(self._compare, end, reply))

        self.world.request(self, lambda ref: ClaimEnded(ref=ref, end=end), answered)

    def _compare(self, end: TaskEnded, before: Reply, again: Reply | None) -> None:
        if again is not None and type(again) is not type(before):
            self.world.contradicted(f"{end.task_id}, {end.attempt}: {before} and then {again}")

    def _rest(self) -> None:
        self.processes.clear()
        self.run = None
        self.poll()

    # Faults

    def leave(self) -> None:
        """Told to go: it hands back what it has, and comes again."""
        if self.run is not None:
            self._stop(self.run, "returned")

    def power_cut(self, seconds: float) -> None:
        """Everything on it is gone, and it for so long."""
        self.processes.clear()
        self.run = None
        self.polls += 1
        self._poll_in(seconds)
