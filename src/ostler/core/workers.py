"""What happens to workers: they register, beat, ask, leave, go silent, are drained."""

from typing import Final

from ostler.core import attempts
from ostler.core.effects import Acknowledge, Answer, CloseSession, Effect, Refuse
from ostler.core.events import DrainRequested, WorkerAsked, WorkerBeat, WorkerLeft, WorkerRegistered
from ostler.core.fleet import Fleet, Worker
from ostler.core.queueing.bound import drop_worker
from ostler.core.reconcile import reconcile
from ostler.core.room import Room
from ostler.core.timers import CONTACT, GRACE
from ostler.domain import states
from ostler.domain.errors import NotFound
from ostler.domain.worker import Capabilities

SILENCE_S: Final = 30.0
"""Three heartbeats."""
AHEAD_MOST: Final = 1024
"""What one worker is sent beyond its room, however much it would take."""
CLAIMS_WITHIN_S: Final = 120.0
"""A machine that only claims and has not been heard of for this long is taken for gone."""


def registered(fleet: Fleet, event: WorkerRegistered, now: float) -> list[Effect]:
    worker = fleet.workers.get(event.worker_id)
    effects: list[Effect] = []
    if worker is None:
        worker = add(fleet, event.worker_id, event.capabilities, now)
    elif event.session < worker.newest_session:
        # It was held up on the way, and what it says is older than what the worker has said since.
        return [CloseSession(worker_id=worker.id, session=event.session, taken_over=False)]
    elif worker.session not in (0, event.session):
        effects.append(CloseSession(worker_id=worker.id, session=worker.session, taken_over=True))
    if worker.boot_id != event.boot_id:
        worker.faults = 0
        worker.cooling = False
    is_same_socket = worker.session == event.session
    if not is_same_socket:
        fleet.asking.pop(worker.id, None)
    worker.claims = b""
    for attempt in worker.attempts.values():
        attempt.claimed = False  # its connection speaks for it from now on, and a lease would end it all the same
    worker.session = worker.newest_session = event.session
    worker.boot_id = event.boot_id
    worker.address = event.address
    worker.ahead = min(event.ahead, AHEAD_MOST)
    worker.is_plain = event.is_plain
    worker.leaving = False
    worker.forget_reports(worker.questions if is_same_socket else 0)
    worker.registered_at = fleet.wall(now)
    heard(fleet, worker, now)
    if not worker.watched:
        worker.watched = True
        fleet.timers.add(now + SILENCE_S, CONTACT, worker.id)
    set_offer(fleet, worker, event.capabilities)
    fleet.touch_worker(worker)
    fleet.announce(now, "worker", worker.id, state="online")
    effects.append(Acknowledge(worker_id=worker.id, session=event.session, of="register"))
    return effects + reconcile(fleet, worker, event.active_tasks, now, registering=True)


def add(fleet: Fleet, worker_id: str, capabilities: Capabilities, now: float, claims: bytes = b"") -> Worker:
    offer = fleet.offer_of(worker_id, capabilities, claims)
    worker = Worker(
        id=worker_id, capabilities=capabilities, offer=offer, room=Room(offer), last_contact=now, claims=claims
    )
    fleet.workers[worker_id] = worker
    fleet.index.add_worker(worker_id)
    fleet.index.offer_changed(worker)
    return worker


def beat(fleet: Fleet, worker: Worker, event: WorkerBeat, now: float) -> list[Effect]:
    if event.capabilities is not None and event.capabilities != worker.capabilities:
        set_offer(fleet, worker, event.capabilities)
    if event.draining and not worker.leaving:
        worker.leaving = True
        fleet.look_ahead[worker.id] = None
        if worker.is_plain:
            fleet.may_be_sent[worker.id] = None
        fleet.announce(now, "worker", worker.id, state="draining", reason="the worker is shutting down")
        fleet.index.room_changed(worker)
    if event.slots is not None and worker.take_heartbeat(event.slots, now):
        fleet.look_ahead[worker.id] = None
        fleet.index.room_changed(worker)
    ack = Acknowledge(worker_id=worker.id, session=worker.session, of="heartbeat", sent_at=event.sent_at)
    if event.active_tasks is None:
        return [ack]
    return [ack, *reconcile(fleet, worker, event.active_tasks, now, registering=False)]


def asked(fleet: Fleet, worker: Worker, event: WorkerAsked, now: float) -> list[Effect]:
    """The answer comes with the next placements: work, or the word that there is none."""
    worker.take_question(event.slots, now)
    if worker.is_plain:
        fleet.may_be_sent[worker.id] = None
    fleet.asking[worker.id] = None
    fleet.look_ahead[worker.id] = None
    fleet.index.room_changed(worker)
    return []


def left(fleet: Fleet, event: WorkerLeft, now: float) -> list[Effect]:
    worker = fleet.workers.get(event.worker_id)
    if worker is not None and worker.session == event.session:
        go_offline(fleet, worker, event.reason or "its connection closed", now)
    return []


def go_offline(fleet: Fleet, worker: Worker, reason: str, now: float) -> None:
    """Its tasks are orphans now. Their room stays taken, each until its own grace has run out."""
    worker.session = 0
    worker.questions = 0
    fleet.asking.pop(worker.id, None)
    drop_worker(fleet, worker.id)
    fleet.index.room_changed(worker)
    fleet.touch_worker(worker)
    fleet.announce(now, "worker", worker.id, state="offline", reason=reason)
    for attempt in worker.attempts.values():
        if attempt.task is None:
            continue
        if not attempt.watched:
            attempt.watched = True
            fleet.timers.add(worker.last_contact + attempt.task.job.terms.grace_s, GRACE, attempt.id)
        if attempt.is_current() and attempt.task.state != states.ORPHANED:
            attempts.set_state(fleet, attempt.task, states.ORPHANED, f"{worker.id} went silent: {reason}", now)


def heard(fleet: Fleet, worker: Worker, now: float) -> None:
    """Any message is a sign of life."""
    worker.last_contact = now
    worker.last_contact_at = fleet.wall(now)


def drain(fleet: Fleet, event: DrainRequested, now: float) -> list[Effect]:
    worker = fleet.workers.get(event.worker_id)
    if worker is None:
        return [Refuse(ref=event.ref, error=NotFound(f"there is no worker {event.worker_id}"))]
    if worker.draining != event.draining:
        worker.draining = event.draining
        if worker.is_plain:
            fleet.may_be_sent[worker.id] = None
        fleet.look_ahead[worker.id] = None
        fleet.index.room_changed(worker)
        fleet.touch_worker(worker)
        word = "draining" if event.draining else "resumed"
        fleet.announce(now, "worker", worker.id, state=word, reason="by an operator")
    return [Answer(ref=event.ref, ids=[worker.id])]


def set_offer(fleet: Fleet, worker: Worker, capabilities: Capabilities) -> None:
    worker.capabilities = capabilities
    fleet.look_ahead[worker.id] = None
    offer = fleet.offer_of(worker.id, capabilities, worker.claims, is_plain=worker.is_plain)
    if offer != worker.offer:
        lasting = offer.at_best() != worker.offer.at_best()
        fleet.change_offer(worker, offer)
        if lasting:  # what comes and goes by itself is not worth a row
            fleet.touch_worker(worker)
    else:
        fleet.index.room_changed(worker)
