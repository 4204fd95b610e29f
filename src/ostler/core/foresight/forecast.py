"""What happens from here: the real core run forward in virtual time, on a copy that its caller gives away.

Workers stay in touch, what runs ends when its run time is over, what is placed begins at once, and machines that claim
ask again as soon as they have room. One run knows one set of run times; several that were drawn differently tell how
far to trust them.
"""

import math
from collections.abc import Callable, Iterable
from hashlib import blake2b
from heapq import heapify, heappop, heappush

from ostler.core.attempts import back_to_pending, forget_ended, release
from ostler.core.effects import AskYield, AssignTask, CancelTask, Claimed, Effect
from ostler.core.events import CancelRequested, ClaimEnded, ClaimRequested, Event, TaskAccepted, TaskEnded, TimePassed
from ostler.core.fleet import Attempt, Fleet, Job, Task, Worker
from ostler.core.learning import estimates
from ostler.core.learning.run import Run
from ostler.core.placing.place import PLACEMENTS_PER_PASS, settle
from ostler.core.step import step
from ostler.core.timers import ACCEPTANCE, AHEAD, CONTACT, HOLDS, LEASE, RUNTIME
from ostler.core.touched import Touched
from ostler.core.workers import CLAIMS_WITHIN_S

HORIZON_S = 365 * 86_400.0
"""What begins later than this is not told apart from what never does."""
STOPS_WITHIN_S = 2.0
"""What is told to end, with time for its farewell."""
NOT_FORESEEN = (CONTACT, ACCEPTANCE, RUNTIME, LEASE, HOLDS, AHEAD)
"""Reminders of what goes wrong, which nothing does here, and to look who has waited for too long: that is looked at
when something happens, and the less often the further ahead it is."""
LOOKS_AT_HOLDS = 50
"""Times that the time looked ahead grows by a half, about."""

Draw = Callable[[Fleet, Job, Task, float], float]
"""Seconds that a task runs in all, given how many it has run already."""


FEW_RUNS = 10
"""Of a kind of which fewer are known, those that run now tell something too."""


def notice_running(fleet: Fleet, now: float) -> None:
    """On the copy: what runs has not ended yet. Of a kind that is hardly known the short runs end first, and by those
    alone all others would be taken for short."""
    noticed: dict[int, int] = {}
    for attempt in fleet.held.values():
        if attempt.task is None or attempt.started is None or attempt.phase != "running":
            continue
        job = attempt.task.job
        known = fleet.kinds.of(job.kind)
        seen = known.run_s.runs() if known is not None else 0.0
        if seen < FEW_RUNS and noticed.get(job.kind, 0) < FEW_RUNS and not (job.terms.service or job.terms.model):
            noticed[job.kind] = noticed.get(job.kind, 0) + 1
            fleet.kinds.learn(job.kind, job.user, Run(ran_s=now - attempt.started, outcome="cut"))


def likely(fleet: Fleet, job: Job, task: Task, ran_s: float) -> float:
    return estimates.run_s(fleet, job, estimates.LIKELY, ran_s)


def drawn(number: int) -> Draw:
    """Run times as they may well be, the same for the same number: every run has its own luck, and a kind of which
    little is known has one luck for all of its runs."""
    of_kind: dict[object, tuple[float, float]] = {}

    def draw(fleet: Fleet, job: Job, task: Task, ran_s: float) -> float:
        kind = job.kind or job.user
        if kind not in of_kind:
            known = fleet.kinds.of(job.kind)
            runs = known.run_s.runs() if known is not None else 0.0
            of_kind[kind] = (1.0 / (1.0 + runs), _chances(number, f"kind {kind}")[0])
        doubt, luck = of_kind[kind]
        own, shares = _chances(number, task.id)
        return estimates.run_s(fleet, job, luck if shares < doubt else own, ran_s)

    return draw


def _chances(number: int, of: str) -> tuple[float, float]:
    """Two that have nothing to do with each other."""
    digest = blake2b(of.encode(), digest_size=12, key=number.to_bytes(2, "big")).digest()
    first, second = int.from_bytes(digest[:6], "big"), int.from_bytes(digest[6:], "big")
    return (first + 0.5) / 2.0**48, (second + 0.5) / 2.0**48


class Ahead:
    """One run. `starts` and `ends` are known for the jobs that it has reached."""

    def __init__(self, fleet: Fleet, now: float, draw: Draw = likely) -> None:
        self.fleet = fleet
        self.begun = self.now = now
        self.starts: dict[str, float] = {}
        """When the first task of a job that waits begins."""
        self.ends: dict[str, float] = {}
        """When the last task of a job ends, once all of them have begun."""
        self._draw = draw
        self._due: list[tuple[float, str]] = []
        """When each attempt ends."""
        self._last_end: dict[str, float] = {}
        heard = now - CLAIMS_WITHIN_S
        self._claimers = [one for one in fleet.workers.values() if one.only_claims and one.last_contact > heard]
        """Those that have asked lately, and so will again whenever they have nothing to do."""
        fleet.timers = fleet.timers.without(NOT_FORESEEN)
        fleet.kinds.learns = False
        self._take_back_those_ahead()
        for worker in fleet.workers.values():
            self._serve_at_once(worker)
            for attempt in worker.attempts.values():
                self._foresee_end(worker, attempt)
        heapify(self._due)
        self._pass([])

    def _serve_at_once(self, worker: Worker) -> None:
        """Round trips take no time here: a worker that asks has asked, and accepts what it is sent."""
        if worker.connected and worker.slots is not None and (worker.is_plain or not worker.has_beaten):
            worker.is_plain, worker.has_beaten, worker.announced = False, True, worker.report
            self.fleet.index.room_changed(worker)

    def _take_back_those_ahead(self) -> None:
        """Round trips take no time here, so nobody need be sent ahead: those that were wait for the same room."""
        for worker in self.fleet.workers.values():
            worker.ahead = 0
            for attempt in [one for one in worker.attempts.values() if one.after is not None]:
                current, task = attempt.is_current(), attempt.task
                release(self.fleet, attempt, "returned", "", self.now)
                if current and task is not None:
                    back_to_pending(self.fleet, task, "", self.now)

    def until(self, wanted: Iterable[str], enough: Callable[[], bool]) -> bool:
        """Go on until these have all begun; False: it was enough before that, or nothing that is known of would begin
        them."""
        left = [name for name in wanted if name not in self.starts]
        while left:
            if left[-1] in self.starts:
                left.pop()
            elif enough() or not self.advance():
                return False
        return True

    def advance(self) -> bool:
        """To the next moment at which something happens. False: there is none."""
        timer = self.fleet.timers.next_at()
        at = min(self._due[0][0] if self._due else math.inf, math.inf if timer is None else timer)
        if at - self.begun > HORIZON_S:
            return False
        self.now = max(self.now, at)
        effects: list[Effect] = []
        while self._due and self._due[0][0] <= self.now:
            effects += self._end(heappop(self._due)[1])
        effects += step(self.fleet, TimePassed(), self.now)
        self._pass(effects)
        return True

    def _pass(self, effects: list[Effect]) -> None:
        while True:
            placed = settle(self.fleet, self.now)
            is_full = sum(isinstance(one, AssignTask) for one in placed) >= PLACEMENTS_PER_PASS
            effects += placed
            effects += [one for worker in self._claimers for one in self._claim(worker)]
            effects = [more for effect in effects for more in self._follow(effect)]
            holds = self.fleet.holds
            holds.look_at = max(holds.look_at, self.now + (self.now - self.begun) / LOOKS_AT_HOLDS)
            self.fleet.touched = Touched()
            forget_ended(self.fleet)
            if not effects and not is_full:
                return

    def _follow(self, effect: Effect) -> list[Effect]:
        """What the world does about it."""
        match effect:
            case AssignTask():
                told = self._accept(effect.worker_id, effect.session, effect.task_id, effect.attempt)
                self._begin(effect.worker_id, effect.attempt)
                return told
            case Claimed():
                self._begin(self.fleet.held[effect.attempt].worker_id, effect.attempt)
                return []
            case CancelTask():
                heappush(self._due, (self.now + STOPS_WITHIN_S, effect.attempt))
                return []
            case AskYield():
                reason = f"its room goes to {effect.wanted_by}"
                return step(self.fleet, CancelRequested(ref=0, job_id=effect.job_id, reason=reason), self.now)
            case _:
                return []

    def _accept(self, worker_id: str, session: int, task_id: str, attempt: str) -> list[Effect]:
        event = TaskAccepted(worker_id=worker_id, session=session, task_id=task_id, attempt=attempt)
        return step(self.fleet, event, self.now)

    def _begin(self, worker_id: str, attempt_id: str) -> None:
        attempt = self.fleet.held[attempt_id]
        assert attempt.task is not None
        job = attempt.task.job
        self.starts.setdefault(job.id, self.now)
        self._foresee_end(self.fleet.workers[worker_id], attempt)

    def _foresee_end(self, worker: Worker, attempt: Attempt) -> None:
        task = attempt.task
        if attempt.phase == "stopping" and worker.connected:
            heappush(self._due, (self.now + STOPS_WITHIN_S, attempt.id))
        if task is None or attempt.phase not in ("assigned", "running") or not (worker.connected or attempt.claimed):
            return
        if not attempt.accepted:
            self._accept(worker.id, worker.session, task.id, attempt.id)
        ran_s = max(0.0, self.now - attempt.started) if attempt.started is not None else 0.0
        of_all = self.fleet.task(task.job, 0) if task.job.is_gang else task
        at = self.now + max(0.0, self._draw(self.fleet, task.job, of_all, ran_s) - ran_s)
        if at - self.begun > HORIZON_S or task.job.terms.service or task.job.terms.model:
            at = math.inf
        else:
            heappush(self._due, (at, attempt.id))
        self._last_end[task.job.id] = max(at, self._last_end.get(task.job.id, 0.0))
        if not task.job.waiting:
            self.ends[task.job.id] = self._last_end[task.job.id]

    def _end(self, attempt_id: str) -> list[Effect]:
        attempt = self.fleet.held.get(attempt_id)
        if attempt is None:
            return []
        worker = self.fleet.workers[attempt.worker_id]
        end = TaskEnded(
            worker_id=worker.id,
            session=worker.session,
            task_id=attempt.task_id,
            attempt=attempt.id,
            state="cancelled" if attempt.phase == "stopping" else "succeeded",
        )
        event: Event = ClaimEnded(ref=0, end=end) if attempt.claimed else end
        return step(self.fleet, event, self.now)

    def _claim(self, worker: Worker) -> list[Effect]:
        """A machine that claims has one task at a time."""
        if worker.attempts or not self.fleet.index.claimable(worker) & self.fleet.queue.pending:
            return []
        event = ClaimRequested(ref=0, worker_id=worker.id, capabilities=worker.capabilities, capability=worker.claims)
        return step(self.fleet, event, self.now)
