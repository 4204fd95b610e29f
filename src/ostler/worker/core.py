"""The worker's decisions: one event, one step, and the effects it calls for. No I/O, no clock, no asyncio.

An attempt is in exactly one of three places: `held` (it runs, or is about to), `endings` (its processes are gone, what
it left is on its way to the hub) or `results` (kept, and sent again, until the hub has acknowledged it).
"""

from collections.abc import Iterable

import msgspec

from ostler.domain import states
from ostler.wire.messages import Heartbeat, JobAccepted, JobResult, Protocol, ReadyForWork, Register, ServiceHealth
from ostler.worker import devices, endings
from ostler.worker.events import (
    Acknowledged,
    Assigned,
    BeatDue,
    Begun,
    CallBack,
    CancelAsked,
    CheckpointBrought,
    Connected,
    ConnectionLost,
    DevicesReleased,
    DevicesSeen,
    DiskChanged,
    DrainAsked,
    DrainEnded,
    Effect,
    Event,
    HubHeard,
    InLine,
    Launched,
    LaunchFailed,
    LaunchTask,
    Misassigned,
    OfferChanged,
    OutcomeCollected,
    ProcessEnded,
    RenewLeases,
    Send,
    ServiceProbed,
    SnapshotsChanged,
    StopTask,
    TookBack,
    WatchService,
)
from ostler.worker.orders import Order
from ostler.worker.state import Hold, State, rfc3339
from ostler.worker.verdict import BY_BUDGET, BY_CANCEL, BY_DRAIN, BY_LIVENESS, RETURNED, outcome

GRACE_S = 10.0


def step(state: State, event: Event, now: float) -> list[Effect]:
    """`now` is the time of day, in seconds."""
    match event:
        case Assigned():
            return _assigned(state, event.order, now)
        case ProcessEnded():
            return _process_ended(state, event, now)
        case OutcomeCollected():
            return endings.collected(state, event)
        case Acknowledged():
            return endings.acknowledged(state, event)
        case HubHeard():
            return [RenewLeases(age_s=event.age_s)] if state.held else []
        case CancelAsked():
            return _cancel(state, event)
        case ServiceProbed():
            return _probed(state, event)
        case CheckpointBrought():
            if event.attempt in state.held:
                state.held[event.attempt].checkpoint = event.checkpoint
            return []
        case Launched() | DevicesReleased() | DevicesSeen():
            return _about_devices(state, event, now)
        case InLine() | Begun():
            return _in_another_queue(state, event, now)
        case BeatDue():
            return _beat(state, event, now)
        case Misassigned():
            return _misassigned(state, event)
        case LaunchFailed():
            return _launch_failed(state, event, now)
        case _:
            return _about_the_worker(state, event, now)


def _about_the_worker(
    state: State,
    event: TookBack
    | Connected
    | ConnectionLost
    | OfferChanged
    | DiskChanged
    | SnapshotsChanged
    | DrainAsked
    | DrainEnded,
    now: float,
) -> list[Effect]:
    match event:
        case TookBack():
            return _took_back(state, event)
        case Connected():
            return _connected(state, now)
        case ConnectionLost():
            state.connected = False
        case OfferChanged():
            state.capabilities = event.capabilities
            if event.batch_slots is not None:
                state.batch_slots = event.batch_slots
                return _say_hello(state, now)
        case DiskChanged():
            state.disk_full = event.full
            return _say_hello(state, now)
        case SnapshotsChanged():
            is_news, state.snapshots = state.snapshots != event.ids, event.ids
            return _say_hello(state, now) if is_news else []  # the hub places jobs by it
        case DrainAsked():
            state.draining = True
            # A model finishes the requests in flight: the gateway stops it after them, or the end of the drain does.
            services = [hold for hold in state.held.values() if hold.facts.service and not hold.facts.model]
            waiting = [CallBack(attempt=hold.attempt) for hold in state.held.values() if hold.after]
            return [*_say_hello(state, now), *waiting, *_stop_for_drain(services, GRACE_S)]
        case DrainEnded():
            state.draining = True
            return _stop_for_drain(list(state.held.values()), event.grace_s)
    return []


# The connection


def _took_back(state: State, event: TookBack) -> list[Effect]:
    effects: list[Effect] = []
    for held, facts in event.held:
        if held.ended is None:
            after = set(held.after)
            _line_up(state, held.attempt, after)
            if state.queue and not held.started_at:
                after.add(state.queue)
            state.hold(
                Hold(
                    task_id=held.task_id,
                    attempt=held.attempt,
                    facts=facts,
                    started_at=held.started_at,
                    after=after,
                )
            )
            if facts.port:
                effects.append(WatchService(attempt=held.attempt, facts=facts))
        else:
            effects += endings.begin(state, outcome(held.ended), facts, left_nothing=held.ended.left_nothing)
    return effects


def _connected(state: State, now: float) -> list[Effect]:
    state.connected = True
    hello = Register(
        id=state.worker_id,
        capabilities=state.offered(),
        active_tasks=state.account(),
        boot_id=state.boot_id,
        protocol=Protocol(batch=True, ahead=state.ahead, beside=not state.queue, hints=not state.queue, lines=True),
    )
    effects: list[Effect] = [Send(hello)]
    for kept in state.results.values():
        kept.fresh = True
        effects.append(Send(kept.result))
    effects += _say_hello(state, now)  # the hub pushes nothing before a heartbeat has announced the slots
    if not state.draining:
        effects.append(Send(ReadyForWork(worker_id=state.worker_id, slots=state.slots(), reason="registered")))
    for ending in state.endings.values():
        if not ending.collecting and not ending.collected:
            effects.append(endings.collect(ending))
    return effects + [health for hold in state.held.values() for health in _health(state, hold)]


def _beat(state: State, event: BeatDue, now: float) -> list[Effect]:
    for attempt, mib in event.peaks.items():
        if attempt in state.held:
            state.held[attempt].peak_memory_mib = mib
    for attempt, (mib, cpu_ms) in event.samples.items():
        if attempt in state.held:
            state.held[attempt].memory_mib, state.held[attempt].cpu_s = mib, cpu_ms / 1000
    if not state.connected:
        return []
    effects = _say_hello(state, now)
    for kept in state.results.values():
        if not kept.fresh:
            # A whole heartbeat without an acknowledgement: one of the two frames was lost.
            effects.append(Send(kept.result))
        kept.fresh = False
    slots = state.slots()
    if not state.draining and slots.batch_in_use < slots.batch_total:
        effects.append(Send(ReadyForWork(worker_id=state.worker_id, slots=slots, reason="heartbeat")))
    return effects


def _say_hello(state: State, now: float) -> list[Effect]:
    if not state.connected:
        return []
    beat = Heartbeat(
        worker_id=state.worker_id,
        slots=state.slots(),
        capability=state.offered(),
        active_tasks=state.account(),
        sent_at=rfc3339(now),
        draining=state.draining,
    )
    return [Send(beat)]


# One attempt, from its assignment to the acknowledgement of its result


def _assigned(state: State, order: Order, now: float) -> list[Effect]:
    if order.attempt in state.held or order.attempt in state.endings or order.attempt in state.results:
        return []
    if state.draining:
        error = "the worker is shutting down"
        return endings.keep(state, _result(order, RETURNED, error=error, fault="drain"))
    quarantined = next((index for index in order.facts.devices if index in state.quarantine), None)
    if quarantined is not None:
        error = f"GPU {quarantined} is not to be used: {state.quarantine[quarantined].text}"
        return endings.keep(state, _result(order, RETURNED, error=error))
    holder = _holder_of(state, order)
    if holder is not None:
        # The hub could not know of that process. Run side by side they would spoil each other's work.
        error = f"a GPU of it is still held here by {holder.task_id}, attempt {holder.attempt}"
        return endings.keep(state, _result(order, RETURNED, error=error))
    hold = Hold(task_id=order.task_id, attempt=order.attempt, facts=order.facts, started_at=now)
    hold.after = _still_before(state, order.after)
    state.hold(hold)
    _line_up(state, hold.attempt, hold.after)
    if hold.after != set(order.after):
        order = msgspec.structs.replace(order, after=tuple(sorted(hold.after)))
    if state.queue:
        hold.after = {*hold.after, state.queue}
    return [LaunchTask(order), *_begun(state, hold)]


def _still_before(state: State, names: Iterable[str]) -> set[str]:
    """Of these, those that are here; of one that was let go before it had begun, those that it waited for."""
    found: set[str] = set()
    for name in names:
        found |= {name} if name in state.held else _still_before(state, state.instead.get(name, ()))
    return found


def _line_up(state: State, attempt: str, after: set[str]) -> None:
    for name in after:
        state.behind.setdefault(name, []).append(attempt)


def _begun(state: State, hold: Hold) -> list[Effect]:
    return [] if hold.after else endings.send(state, JobAccepted(task_id=hold.task_id, attempt=hold.attempt))


def _in_another_queue(state: State, event: InLine | Begun, now: float) -> list[Effect]:
    hold = state.held.get(event.attempt)
    if hold is None:
        return []
    if isinstance(event, InLine):
        hold.waits_for = event.waits_for
        return []
    if state.queue not in hold.after:
        return []
    hold.after = hold.after - {state.queue}
    hold.started_at = now
    return _begun(state, hold)


def _left(state: State, gone: Hold, now: float) -> list[Effect]:
    """Whoever waited for it begins, by the runtime's doing; or, if it never began, waits for what it waited for."""
    effects: list[Effect] = []
    if gone.after:
        state.instead[gone.attempt] = gone.after
    for name in state.behind.pop(gone.attempt, ()):
        hold = state.held.get(name)
        if hold is not None:
            hold.after = (hold.after - {gone.attempt}) | gone.after
            hold.started_at = now
            _line_up(state, name, gone.after)
            effects += _begun(state, hold)
    return effects


def _holder_of(state: State, order: Order) -> Hold | None:
    """Another attempt on one of these devices, where at least one of the two needs it for itself."""
    wanted = order.facts.devices
    if not wanted:
        return None
    for hold in state.held.values():
        alone = hold.facts.whole or order.facts.whole
        if alone and any(device in wanted for device in hold.facts.devices):
            return hold
    return None


def _probed(state: State, event: ServiceProbed) -> list[Effect]:
    hold = state.held.get(event.attempt)
    if hold is None or hold.given_up:
        return []
    is_news = hold.pulse.take(event.not_ready, event.not_alive)
    effects = _health(state, hold) if is_news else []
    if hold.pulse.is_dead:
        hold.given_up = True
        effects.append(StopTask(attempt=hold.attempt, reason=BY_LIVENESS + hold.pulse.message, grace_s=GRACE_S))
    return effects


def _health(state: State, hold: Hold) -> list[Effect]:
    if hold.pulse.healthy is None:
        return []
    return endings.send(
        state,
        ServiceHealth(
            task_id=hold.task_id, healthy=hold.pulse.healthy, message=hold.pulse.message, port=hold.facts.port
        ),
    )


def _misassigned(state: State, event: Misassigned) -> list[Effect]:
    result = JobResult(task_id=event.task_id, attempt=event.attempt, state=states.FAILED, error=event.error)
    return endings.keep(state, result)


def _cancel(state: State, event: CancelAsked) -> list[Effect]:
    hold = state.held.get(event.attempt) if event.attempt else _of_task(state, event.task_id)
    if hold is not None and event.unstarted:
        return [CallBack(attempt=hold.attempt)] if hold.after else []
    if hold is not None:
        hold.cancelled = event.reason
        reason = BY_BUDGET if event.reason == BY_BUDGET else BY_CANCEL + event.reason
        return [StopTask(attempt=hold.attempt, reason=reason, grace_s=event.grace_s)]
    if _has_result(state, event):
        return []
    # Nothing of it is here, and the hub counts room for it until it hears that.
    gone = JobResult(task_id=event.task_id, attempt=event.attempt, state=states.CANCELLED, error="not on this worker")
    return endings.keep(state, gone)


def _of_task(state: State, task_id: str) -> Hold | None:
    return next((hold for hold in state.held.values() if hold.task_id == task_id), None)


def _has_result(state: State, event: CancelAsked) -> bool:
    if event.attempt:
        return event.attempt in state.endings or event.attempt in state.results
    return any(result.task_id == event.task_id for result in state.ended())


def _launch_failed(state: State, event: LaunchFailed, now: float) -> list[Effect]:
    hold = state.let_go(event.attempt)
    if hold is None:
        return []
    state_told, error, fault = RETURNED, event.error, "worker"
    if hold.cancelled is not None:
        state_told, error, fault = states.CANCELLED, hold.cancelled, ""
    elif event.by_task:
        state_told, fault = states.FAILED, ""
    result = JobResult(task_id=hold.task_id, attempt=hold.attempt, state=state_told, error=error, fault=fault)
    return endings.keep(state, result) + _left(state, hold, now)


def _process_ended(state: State, event: ProcessEnded, now: float) -> list[Effect]:
    end = event.end
    hold = state.let_go(end.attempt)
    if hold is None:
        return []
    result = outcome(end, hold.cancelled)
    result.peak_memory_mib = max(result.peak_memory_mib, hold.peak_memory_mib)
    result.peak_vram_mib = hold.peak_vram_mib
    if event.nothing_to_bring and endings.is_whole(result, hold.facts):
        return endings.keep(state, result) + _left(state, hold, now)
    begun = endings.begin(state, result, hold.facts, hold.checkpoint, left_nothing=end.left_nothing)
    return begun + _left(state, hold, now)


# GPUs: a task's are free when it has left them as they were


def _about_devices(state: State, event: Launched | DevicesReleased | DevicesSeen, now: float) -> list[Effect]:
    match event:
        case Launched():
            if event.attempt in state.held:
                state.held[event.attempt].facts = event.facts
        case DevicesReleased():
            return _released(state, event, now)
        case DevicesSeen():
            state.outside = devices.outside(event.usages, _on_devices(state))
            for hold in state.held.values():
                seen = devices.held_by(event.usages, hold.attempt, hold.facts.devices, hold.facts.baseline_mib)
                hold.vram_mib, hold.peak_vram_mib = seen, max(hold.peak_vram_mib, seen)
            before = state.quarantine
            state.quarantine = devices.still_quarantined(event.usages, before)
            return _say_hello(state, now) if state.quarantine != before else []
    return []


def _on_devices(state: State) -> dict[int, list[str]]:
    """The attempts that hold each device, or have not yet let go of it."""
    found: dict[int, list[str]] = {}
    for hold in state.held.values():
        for index in hold.facts.devices:
            found.setdefault(index, []).append(hold.attempt)
    for attempt, ending in state.endings.items():
        for index in ending.baseline_mib:
            found.setdefault(index, []).append(attempt)
    return found


def _released(state: State, event: DevicesReleased, now: float) -> list[Effect]:
    ending = state.endings.get(event.attempt)
    if ending is None:
        return []
    left = devices.left_behind(event.usages, ending.baseline_mib, ending.result.task_id, event.attempt)
    ending.baseline_mib = {}
    state.quarantine |= left
    # The hub must know before it hears that the device is free.
    return [*(_say_hello(state, now) if left else []), *endings.keep_when_done(state, ending)]


def _stop_for_drain(holds: list[Hold], grace_s: float) -> list[Effect]:
    return [StopTask(attempt=hold.attempt, reason=BY_DRAIN[0], grace_s=grace_s) for hold in holds]


def _result(order: Order, state: str, *, error: str, fault: str = "") -> JobResult:
    return JobResult(task_id=order.task_id, attempt=order.attempt, state=state, error=error, fault=fault)
