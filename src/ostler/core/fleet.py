"""The state of the fleet: a cache of the ledger, and what is not worth keeping there.

Everything that changes a holding, a queue place or a durable row goes through the few methods here, so that room,
index and changes can never drift from the rows they belong to. Decisions are made elsewhere.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec

from ostler.core.attempt import LEASES, Attempt, Sent, Task
from ostler.core.holding import NOTHING
from ostler.core.index import Index, Shape, bits
from ostler.core.job import Job
from ostler.core.learning.followers import Followers
from ostler.core.learning.kinds import Kinds
from ostler.core.placing.board import Board
from ostler.core.placing.mix import Mix
from ostler.core.queueing.holds import Holds
from ostler.core.queueing.queue import Queue
from ostler.core.queueing.usage import Usage
from ostler.core.ranges import with_index, without_index
from ostler.core.room import Room, gpu_thousandths
from ostler.core.timers import PREFERENCE, SCHEDULING, Timers
from ostler.core.touched import TALLY, Touched
from ostler.core.worker import Worker
from ostler.domain import states
from ostler.domain.hosts import HostPolicy, policy_of
from ostler.domain.job import Terms
from ostler.domain.quota import Quotas
from ostler.domain.records import FeedRecord, KeptRecord
from ostler.domain.resources import Offer, Request
from ostler.domain.scheduling import Scheduling
from ostler.domain.worker import Capabilities

__all__ = ["Attempt", "Fleet", "Job", "Task", "Worker"]

MAX_SHARED_TERMS: Final = 4096
MOST_TOGETHER: Final = 64
"""Attempts that were sent ahead and are written down as one: with more, what is left of them is written too often."""


class Fleet:
    def __init__(self, new_attempt_id: Callable[[], str]) -> None:
        self.new_attempt_id = new_attempt_id
        self.jobs: dict[str, Job] = {}
        self.job_counts: dict[str, int] = dict.fromkeys(states.STATES, 0)
        """The jobs in memory by state."""
        self.tally: dict[str, int] = dict.fromkeys(states.TERMINAL, 0)
        """How many jobs of the ledger have ended in each state."""
        self.workers: dict[str, Worker] = {}
        self.hosts: dict[str, HostPolicy] = {}
        """What the manifest says about hosts."""
        self.held: dict[str, Attempt] = {}
        """Every attempt of ours that holds room, by id."""
        self.usage = Usage()
        self.kinds = Kinds()
        self.index = Index()
        self.mix = Mix(self.index)
        self.board = Board(self.mix)
        self.policy = Scheduling()
        self.holds = Holds()
        self.followers = Followers()
        self.set_quotas(Quotas())
        self.queue = Queue(self.usage, self.within_quota, self.index.begins_to_wait)
        self.timers = Timers()
        self.terms: dict[Terms, Terms] = {}
        self.dependents: dict[str, list[str]] = {}
        """Jobs that wait for a job, by that job."""
        self.bound: dict[str, list[Attempt]] = {}
        """Room that is kept for a job, by its id."""
        self.checkpoints: dict[str, int] = {}
        """How many tasks in memory begin from each blob."""
        self.room_makers: dict[str, set[str]] = {}
        """Attempts that were told to end for a job's sake and have not, by that job."""
        self.load_s: dict[str, dict[str, float]] = {}
        """Of models that wait for room: how long it takes to load them, by worker."""
        self.ahead_on: dict[str, int] = {}
        """How many attempts were sent ahead to each worker and have not begun."""
        self.look_ahead: dict[str, None] = {}
        """Workers on which something has changed that those sent ahead depend on."""
        self.sends_on = False
        """Whether one of them was sent as many as one pass sends, and may be sent more."""
        self.yielding: dict[float, dict[str, int]] = {}
        """Attempts held that may be told to end for another job's sake: by their priority, how many on each worker."""
        self.running_of: dict[str, list[int]] = {}
        """What each user's attempts hold: how many there are, and how many thousandths of GPUs they have."""
        self.queued_of: dict[str, int] = {}
        """How many jobs of each user are pending."""
        self.ended_now: list[Job] = []
        """Jobs that ended in this batch: others may wait for them."""
        self.hints: list[Job] = []
        """Jobs with a snapshot that began to wait for room in this batch."""
        self.leaving: dict[str, Job] = {}
        """Jobs of which something has ended in this batch."""
        self.over: list[Task] = []
        """What it was, of those: what has ended, or has nothing left that holds room."""
        self.unplaced: dict[str, Job] = {}
        """Running arrays and gangs that lost their last placed task in this batch."""
        self.moved_up: dict[str, Attempt] = {}
        """Those of which the one before them has ended in this batch."""
        self.may_be_sent: dict[str, None] = {}
        """The plain workers that may be sent the next of their tasks, or have to give some back."""
        self.asking: dict[str, None] = {}
        """The workers whose questions for work wait for their answers."""
        self.served: Counter[str] = Counter()
        """How many tasks each of them was given since it asked."""
        self.job_seq = 0
        self.feed_seq = 0
        self.epoch = 0.0
        """Wall clock less the loop's own; set by the loop."""
        self.touched = Touched()

    def set_quotas(self, quotas: Quotas) -> None:
        self.quotas = quotas
        self.limits_what_runs = quotas.limit_what_runs
        """Any of them: asked with every decision, and most hubs have no quotas."""
        self.limits_the_queue = quotas.limit_the_queue

    def wall(self, now: float) -> float:
        return now + self.epoch

    # Rows

    def touch_job(self, job: Job) -> None:
        """Unless it left memory and came back as another: an old attempt that still speaks of it changes no row."""
        if self.jobs.get(job.id, job) is job:
            self.touched.jobs[job.id] = job

    def touch_task(self, task: Task) -> None:
        if self.jobs.get(task.job.id, task.job) is task.job:
            self.touched.tasks[task.id] = task
            if task.holder is not None and task.holder.sent is not None:
                self._leave_others(task.holder, task, task.holder.sent)

    def touch_attempt(self, attempt: Attempt) -> None:
        if attempt.task is not None:
            self.touched.attempts[attempt.id] = attempt
            if attempt.sent is not None:
                self._leave_others(attempt, attempt.task, attempt.sent)

    def write_together(self, attempt: Attempt, task: Task, before: str) -> None:
        """It was sent ahead, and nothing ever happened to its task before: that is written with others of its kind."""
        will = attempt.held if attempt.will is None else attempt.will
        of = (task.job.id, attempt.worker_id, will)
        sent = self.touched.sending.get(of)
        if sent is None or len(sent.attempts) >= MOST_TOGETHER:
            sent = self.touched.sending[of] = Sent(task.job.id, attempt, task.index, will)
            self.touched.sent[sent.key] = sent
        sent.low, sent.high = min(sent.low, task.index), max(sent.high, task.index)
        sent.attempts[attempt.id] = (task.index, attempt.id, before)
        attempt.sent = sent

    def _leave_others(self, attempt: Attempt, task: Task, sent: Sent) -> None:
        """Something has happened to it, or to its task."""
        attempt.sent = None
        del sent.attempts[attempt.id]
        self.touched.sent[sent.key] = sent
        self.write_apart(attempt, task)

    def write_apart(self, attempt: Attempt, task: Task) -> None:
        """Both have rows of their own from now on."""
        self.touched.attempts[attempt.id] = attempt
        self.touched.tasks[task.id] = task
        self.touched.unwritten += (attempt.id, task.id)

    def touch_worker(self, worker: Worker) -> None:
        self.touched.workers[worker.id] = worker

    def charge(self, user: str, gpu_seconds: float, now: float) -> None:
        self.usage.charge(user, gpu_seconds, now)
        self.touched.users.add(user)

    def keep(self, scope: str, key: str, value: bytes | None) -> None:
        """In the ledger, with this batch; None: forget it."""
        self.touched.kept[scope, key] = KeptRecord(scope=scope, key=key, value=value)

    def announce(self, now: float, kind: str, subject: str, **body: str | int | float | None) -> None:
        """One line for whoever watches."""
        self.tell(now, kind, subject, body)

    def tell(self, now: float, kind: str, subject: str, body: dict[str, str | int | float | None]) -> None:
        self.feed_seq += 1
        record = FeedRecord(seq=self.feed_seq, at=self.wall(now), kind=kind, subject=subject, body=body)
        self.touched.feed.append(record)

    # Jobs and tasks

    def shared_terms(self, terms: Terms) -> Terms:
        """Equal terms as one object. Forgotten now and then: nothing depends on it but memory."""
        if len(self.terms) > MAX_SHARED_TERMS:
            self.terms.clear()
        return self.terms.setdefault(terms, terms)

    def enter_job(self, job: Job) -> None:
        self.jobs[job.id] = job
        self.followers.enter(job)
        self._count(job, 1)
        job.shape.jobs += 1
        self.mix.entered()

    def set_job_state(self, job: Job, state: str) -> None:
        sign = int(self.jobs.get(job.id) is job)
        self._count(job, -sign)
        self.recount(job.state, -1)
        job.state = state
        self.recount(state, 1)
        self._count(job, sign)

    def recount(self, state: str, more: int) -> None:
        """Of the jobs that have ended."""
        if state in self.tally:
            self.tally[state] += more
            self.keep(TALLY, state, b"%d" % self.tally[state])

    def _count(self, job: Job, sign: int) -> None:
        self.job_counts[job.state] += sign
        if job.state == states.PENDING:
            self.queued_of[job.user] = self.queued_of.get(job.user, 0) + sign

    def leave(self, job: Job, *tasks: Task) -> None:
        """Something of it has ended: after this batch, what is over may leave memory."""
        if self.jobs.get(job.id) is job:
            self.leaving[job.id] = job
        self.over += tasks

    def forget_job(self, job: Job) -> None:
        if self.jobs.get(job.id) is not job:
            return  # it left earlier; one that was requeued since has its name
        del self.jobs[job.id]
        self.followers.leave(job)
        self.load_s.pop(job.id, None)
        self._count(job, -1)
        job.tasks = None
        self.mix.left(job.shape)
        self.index.left(job.shape)

    def task(self, job: Job, index: int) -> Task:
        """The task with this index; made when something happens to it for the first time."""
        if job.tasks is None:
            job.tasks = {}
        task = job.tasks.get(index)
        if task is None:
            task = job.tasks[index] = Task(id=job.task_id(index), job=job, index=index)
        return task

    def find_task(self, task_id: str) -> Task | None:
        job, index = self.find_job(task_id)
        return job.tasks.get(index) if job is not None and job.tasks is not None else None

    def find_job(self, task_id: str) -> tuple[Job | None, int]:
        """The job of a task's id, and the task's index in it."""
        job = self.jobs.get(task_id)
        if job is not None:
            return job, 0
        name, _, index = task_id.rpartition(".")
        return (self.jobs.get(name), int(index)) if index.isdecimal() and len(index) < 10 else (None, 0)

    def enqueue(self, task: Task) -> None:
        """It waits for a place again, where its arrival puts it."""
        job = task.job
        job.waiting = with_index(job.waiting, task.index)
        self.line_up(job)
        self.touch_job(job)
        if job.terms.scheduling_timeout_s and task.never_placed():
            # The reminder may have come while it was on its way to a worker that did not take it.
            self.timers.add_once(job.queued + job.terms.scheduling_timeout_s, SCHEDULING, job.id)

    def line_up(self, job: Job) -> None:
        if job.may_be_placed():
            self.queue.add(job)

    def change_shape(self, job: Job, request: Request) -> None:
        """Its needs are others from now on; what it holds already stays as it was granted."""
        was_queued = job.lane is not None
        self.queue.remove(job)
        old, job.shape = job.shape, self.index.shape(request, self.workers.values())
        job.shape.jobs += 1
        self.index.left(old)
        if was_queued:
            self.queue.add(job)

    def change_terms(self, job: Job, terms: Terms) -> None:
        """Not while it stands in the queue: its place there follows from them."""
        same = (terms.preemptible, terms.priority) == (job.terms.preemptible, job.terms.priority)
        if same or not (terms.preemptible or job.terms.preemptible):
            # Or thousands of jobs would each look at all that is held.
            job.terms = self.shared_terms(terms)
            return
        held = [one for one in self.held.values() if one.task is not None and one.task.job is job and one.counted]
        with self._counted_anew(held):
            job.terms = self.shared_terms(terms)

    def begin_wait(self, job: Job, now: float) -> None:
        """From here on it waits for room, and first of all for what it prefers."""
        job.queued, job.queued_at = now, self.wall(now)
        self.touch_job(job)
        if job.terms.cuda_first_s:
            self.change_shape(job, msgspec.structs.replace(job.shape.request, cuda_first_s=job.terms.cuda_first_s))

    def watch_wait(self, job: Job) -> None:
        """Have its preference and its scheduling timeout looked at; what waits for other jobs does not wait for room
        yet."""
        if job.blocked_on:
            return
        if job.shape.request.cuda_first_s:
            self.timers.add(job.queued + job.shape.request.cuda_first_s, PREFERENCE, job.id)
        if job.waiting and job.terms.scheduling_timeout_s:
            self.timers.add(job.queued + job.terms.scheduling_timeout_s, SCHEDULING, job.id)

    def take_waiting(self, job: Job, index: int) -> None:
        """This index no longer waits."""
        job.waiting = without_index(job.waiting, index)
        self.touch_job(job)
        if not job.waiting:
            self.queue.remove(job)

    # Room

    def take(self, worker: Worker, attempt: Attempt) -> None:
        worker.attempts[attempt.id] = attempt
        if attempt.task is not None:
            self.held[attempt.id] = attempt
            self.mix.took(attempt.task.job.shape, is_one_of_many=attempt.task.job.size > 0)
            if attempt.counted:
                self._count_holding(worker, attempt, attempt.task.job, 1)
        if attempt.held is NOTHING:
            return
        worker.room.take(attempt.held)
        self.index.room_changed(worker)

    def give(self, worker: Worker, attempt: Attempt) -> None:
        del worker.attempts[attempt.id]
        if attempt.lease_s:
            self.keep(LEASES, attempt.id, None)
        if attempt.task is not None:
            del self.held[attempt.id]
            self.mix.gave()
            if attempt.counted:
                self._count_holding(worker, attempt, attempt.task.job, -1)
        if attempt.held is NOTHING:
            return
        worker.room.give(attempt.held)
        if attempt.phase != "bound":
            worker.count_end(attempt)
        self.index.room_changed(worker)

    def set_counted(self, attempt: Attempt, counted: bool) -> None:
        """Whether it counts as its user's. One whose worker has been given up does not, until it comes back."""
        if attempt.task is not None and attempt.counted != counted:
            worker = self.workers[attempt.worker_id]
            self._count_holding(worker, attempt, attempt.task.job, 1 if counted else -1)
            attempt.counted = counted

    @contextmanager
    def _counted_anew(self, held: list[Attempt]) -> Iterator[None]:
        """Something that their count follows from changes meanwhile."""
        for attempt in held:
            self.set_counted(attempt, False)
        yield
        for attempt in held:
            self.set_counted(attempt, True)

    def _count_holding(self, worker: Worker, attempt: Attempt, job: Job, sign: int) -> None:
        if job.terms.preemptible or attempt.price_s is not None:
            self._count_yielding(job.terms.priority if attempt.price_s is None else -math.inf, worker.id, sign)
        used = self.running_of.get(job.user)
        if used is None:
            used = self.running_of[job.user] = [0, 0]
        used[0] += sign
        used[1] += sign * gpu_thousandths(attempt.held, worker.offer)
        if not used[0]:
            del self.running_of[job.user]

    def _count_yielding(self, priority: float, worker_id: str, sign: int) -> None:
        """An idle model yields to whoever pays its price."""
        self.index.restless[worker_id] = None
        where = self.yielding.setdefault(priority, {})
        where[worker_id] = where.get(worker_id, 0) + sign
        if not where[worker_id]:
            del where[worker_id]
        if not where:
            del self.yielding[priority]

    def gpus_used(self, user: str) -> float:
        return self.running_of.get(user, (0, 0))[1] / 1000

    def within_quota(self, user: str, shapes: int, coming: Sequence[Shape] = ()) -> int:
        """Those of the shapes of which this user may start one more, once one of each of those to come has started."""
        if not self.limits_what_runs:
            return shapes
        quota = self.quotas.of(user)
        if not quota.running_jobs and not quota.running_gpus:
            return shapes
        running, used = self.running_of.get(user, (0, 0))
        for shape in coming:
            nodes, milli = counts_as(shape.request)
            running, used = running + nodes, used + milli
        for sid in bits(shapes):
            shape = self.index.shape_at(sid)
            if quota.exceeded(running, used, *counts_as(shape.request)):
                shapes ^= shape.bit
        return shapes

    def exceeded_quota(self, user: str, request: Request, *, idle: bool = False) -> str:
        """The quota that keeps this user from one more start; "" if none does. `idle`: if nothing of the user ran."""
        running, used = (0, 0) if idle else self.running_of.get(user, (0, 0))
        return self.quotas.of(user).exceeded(running, used, *counts_as(request))

    def offer_of(
        self, worker_id: str, capabilities: Capabilities, claims: bytes = b"", *, is_plain: bool = False
    ) -> Offer:
        """What a worker announces, under the manifest's policy for its host."""
        offer = capabilities.offer()
        if claims or is_plain:
            offer = msgspec.structs.replace(offer, claims=bool(claims), is_plain=is_plain)
        policy = policy_of(self.hosts, worker_id, capabilities.hostname)
        return policy.applied_to(offer) if policy is not None else offer

    def under(self, hosts: dict[str, HostPolicy]) -> list[Worker]:
        """The workers as they would be if the manifest said this about hosts. Copies: nothing is changed."""
        return [
            self._under(worker, policy_of(hosts, worker.id, worker.offer.hostname)) for worker in self.workers.values()
        ]

    def _under(self, worker: Worker, policy: HostPolicy | None) -> Worker:
        offer = msgspec.structs.replace(
            worker.capabilities.offer(), claims=worker.only_claims, is_plain=worker.is_plain
        )
        return worker.offering(policy.applied_to(offer) if policy is not None else offer)

    def change_offer(self, worker: Worker, offer: Offer) -> None:
        """What is held stays held."""
        with self._counted_anew([attempt for attempt in worker.attempts.values() if attempt.counted]):
            worker.offer = offer
        worker.shrunk = bool(worker.attempts)
        worker.room = Room(worker.offer)
        for attempt in worker.attempts.values():
            worker.room.take(attempt.held)
        self.index.offer_changed(worker)


def counts_as(request: Request) -> tuple[int, int]:
    """Of a quota: how many that run, and how many thousandths of GPUs they have together."""
    # Of a share that is an amount of memory, nobody knows what part it will be before it has a device.
    gpus = request.gpu_count or int(request.prefers_cuda)
    milli = 1000 * gpus or max(request.gpu_milli, int(request.shares_gpu))
    return request.nodes, request.nodes * milli
