"""Defects to plant: each takes a MonkeyPatch and breaks one promise of the core or of the hub's loop.

A simulator is as good as the bugs it finds. These are the ones that it must.
"""

from collections.abc import Callable
from typing import Any

import pytest

from ostler.core import attempts, claims, deadlines, effects, fleet, jobs, persist, reconcile, reports, room, workers
from ostler.core.timers import CONTACT, GRACE, LEASE
from ostler.domain import states
from ostler.domain.resources import Grant
from ostler.sim import world

Plant = Callable[[pytest.MonkeyPatch], None]
PLANTS: dict[str, Plant] = {}


CLAIM_PLANTS: dict[str, Plant] = {}
"""Those that show only where machines claim, or where connections keep the order of what is said."""


def plant(defect: Plant) -> Plant:
    PLANTS[defect.__name__.replace("_", " ")] = defect
    return defect


def plant_among_claims(defect: Plant) -> Plant:
    CLAIM_PLANTS[defect.__name__.replace("_", " ")] = defect
    return defect


# Booked twice


@plant
def a_taken_device_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    real = room.Room._change

    def forgetful(self: room.Room, held: room.Holding, sign: int) -> None:
        real(self, room.Holding(held.cores_milli, held.memory_mib, held.pool, Grant()), sign)

    patch.setattr(room.Room, "_change", forgetful)


@plant
def devices_are_picked_whoever_uses_them(patch: pytest.MonkeyPatch) -> None:
    def careless(request: Any, here: room.Room) -> Grant | None:
        devices = here.offer.devices[: request.gpu_count]
        return Grant(tuple(device.index for device in devices)) if len(devices) == request.gpu_count else None

    patch.setattr(room, "_pick_whole", careless)


@plant
def shares_of_a_device_are_not_added_up(patch: pytest.MonkeyPatch) -> None:
    def careless(request: Any, here: room.Room) -> Grant | None:
        fits = [device for device in here.offer.devices if device.vram_mib >= request.vram_mib]
        return Grant((fits[0].index,), request.vram_mib) if fits else None

    patch.setattr(room, "_pick_share", careless)


@plant
def a_stopped_task_is_released_when_that_is_decided(patch: pytest.MonkeyPatch) -> None:
    real = attempts.stop

    def hasty(here: Any, attempt: Any, reason: str) -> Any:
        said = real(here, attempt, reason)
        if attempt.id in here.held:
            attempts.release(here, attempt, "stopped", reason, 0.0)
        return said

    patch.setattr(attempts, "stop", hasty)


@plant
def a_requeued_task_does_not_wait_for_its_old_process(patch: pytest.MonkeyPatch) -> None:
    real = jobs._again

    def hasty(here: Any, task: Any, now: float) -> Any:
        holder, live = task.holder, task.state in states.LIVE and task.state != states.PENDING
        said = real(here, task, now)
        if holder is not None and live:
            attempts.release(here, holder, "stopped", "requeued", now)
        return said

    patch.setattr(jobs, "_again", hasty)


# Lost


@plant
def a_task_that_shall_run_again_is_not_queued(patch: pytest.MonkeyPatch) -> None:
    def forgetful(here: Any, task: Any, reason: str, now: float) -> None:
        attempts.set_state(here, task, states.PENDING, reason, now)

    patch.setattr(attempts, "back_to_pending", forgetful)


@plant
def now_and_then_a_batch_is_not_committed(patch: pytest.MonkeyPatch) -> None:
    real, count = world.MemoryLedger.commit, [0]

    def lazy(self: Any, changes: Any) -> None:
        count[0] += 1
        if count[0] % 50:
            real(self, changes)

    patch.setattr(world.MemoryLedger, "commit", lazy)


@plant
def submits_are_acknowledged_before_they_are_committed(patch: pytest.MonkeyPatch) -> None:
    """Each batch is committed with the next one: what a crash finds uncommitted was already promised."""
    real = world.take_changes
    kept: dict[int, Any] = {}

    def late(here: Any, *args: Any) -> Any:
        before = kept.get(id(here))
        kept.clear()
        kept[id(here)] = real(here, *args)
        return before if before is not None else type(kept[id(here)])()

    patch.setattr(world, "take_changes", late)


@plant
def what_is_held_is_forgotten_over_a_restart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(persist, "_hold_again", lambda *_: None)


# Fenced


@plant
def any_attempt_that_is_known_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fleet.Attempt, "is_current", lambda self: self.task is not None)


@plant
def a_lapsed_attempt_comes_back_whatever_became_of_its_task(patch: pytest.MonkeyPatch) -> None:
    def trusting(attempt: Any, task: Any) -> bool:
        return bool(attempt.phase == "lapsed")

    patch.setattr(reports, "can_come_back", trusting)
    patch.setattr(reconcile, "can_come_back", trusting)


@plant
def results_are_not_acknowledged(patch: pytest.MonkeyPatch) -> None:
    real = reports.ended

    def mute(*args: Any) -> Any:
        real(*args)
        return []

    patch.setattr(reports, "ended", mute)


# Never repaired


@plant
def heartbeats_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    real = workers.reconcile

    def only_at_registration(*args: Any, registering: bool) -> Any:
        return real(*args, registering=registering) if registering else []

    patch.setattr(workers, "reconcile", only_at_registration)


@plant
def nothing_is_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(workers, "reconcile", lambda *_, **__: [])


@plant
def orphans_never_lapse(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(deadlines._WHEN_DUE, GRACE, lambda *_: [])


@plant
def silence_is_never_noticed(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(deadlines._WHEN_DUE, CONTACT, lambda *_: [])


@plant
def an_array_counts_a_task_twice(patch: pytest.MonkeyPatch) -> None:
    real = attempts.end_task

    def twice(here: Any, task: Any, *args: Any) -> None:
        real(here, task, *args)
        if task.job.size and task.index == 3 and task.job.ended:
            state = next(iter(task.job.ended))
            task.job.ended[state] += 1

    patch.setattr(attempts, "end_task", twice)


# Claims


@plant_among_claims
def heartbeats_do_not_renew_a_lease(patch: pytest.MonkeyPatch) -> None:
    real = claims.beat

    def forgetful(here: Any, event: Any, now: float) -> Any:
        before = {attempt.id: attempt.beaten for attempt in here.held.values()}
        said = real(here, event, now)
        for attempt in here.held.values():
            attempt.beaten = before[attempt.id]
        return said

    patch.setattr(claims, "beat", forgetful)


@plant_among_claims
def a_lapsed_claim_can_still_be_completed(patch: pytest.MonkeyPatch) -> None:
    real = claims.ended

    def trusting(here: Any, event: Any, now: float) -> Any:
        end, task = event.end, here.find_task(event.end.task_id)
        lapsed = any(one.attempt == end.attempt and one.state == "lost" for one in event.history)
        if lapsed and task is not None and task.state in states.LIVE and end.state == states.SUCCEEDED:
            answer = effects.Answer(ref=event.ref, ids=[end.task_id])
            return [answer, *reports.apply(here, here.workers[end.worker_id], task, "", end, now)]
        return real(here, event, now)

    patch.setattr(claims, "ended", trusting)


@plant_among_claims
def a_lapsed_claim_is_told_that_it_was_completed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claims, "_same_verdict", lambda *_: True)


@plant_among_claims
def a_lease_never_ends(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(deadlines._WHEN_DUE, LEASE, lambda *_: [])


@plant_among_claims
def claims_are_orphans_after_a_restart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(persist, "_is_claimed", lambda _: False)


@plant_among_claims
def an_assignment_that_was_not_accepted_is_given_to_another_at_once(patch: pytest.MonkeyPatch) -> None:
    def hasty(here: Any, worker: Any, reason: str, now: float) -> Any:
        for attempt in [one for one in worker.attempts.values() if attempts.may_be_on_its_way(one)]:
            attempts.release(here, attempt, "returned", reason, now)
        return []

    patch.setattr(deadlines, "_begin_anew", hasty)


@plant_among_claims
def an_old_connection_that_was_held_up_takes_over(patch: pytest.MonkeyPatch) -> None:
    real = workers.registered

    def trusting(here: Any, event: Any, now: float) -> Any:
        if event.worker_id in here.workers:
            here.workers[event.worker_id].newest_session = 0
        return real(here, event, now)

    patch.setattr(workers, "registered", trusting)
