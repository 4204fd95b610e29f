"""The worker's decisions, as tables."""

from typing import Any

import pytest

from ostler.domain.worker import Capabilities
from ostler.runtime.base import Ended, Held
from ostler.wire.messages import Heartbeat, JobAccepted, JobAssign, JobResult, ReadyForWork, Register, ServiceHealth
from ostler.worker.core import step
from ostler.worker.events import (
    Acknowledged,
    Assigned,
    BeatDue,
    CallBack,
    CancelAsked,
    CollectOutcome,
    Connected,
    ConnectionLost,
    DrainAsked,
    DrainEnded,
    Effect,
    Event,
    ForgetTask,
    LaunchFailed,
    LaunchTask,
    Misassigned,
    OfferChanged,
    OutcomeCollected,
    ProcessEnded,
    Send,
    ServiceProbed,
    StopTask,
    TookBack,
    WatchService,
)
from ostler.worker.orders import Facts, Order, understand
from ostler.worker.state import State
from ostler.worker.verdict import outcome

NOW = 1_700_000_000.0


def worker(*, connected: bool = True, **more: Any) -> State:
    facts = {"capabilities": Capabilities(cpu_count=4), **more}
    state = State(worker_id="w", boot_id="b", batch_slots=4, service_slots=2, **facts)
    if connected:
        do(state, Connected())
    return state


def do(state: State, *events: Event) -> list[Effect]:
    """The effects of the last one."""
    effects: list[Effect] = []
    for event in events:
        effects = step(state, event, NOW)
    return effects


def order(
    attempt: str = "a1", task_id: str = "", *, devices: list[int] | None = None, after: str = "", **spec: Any
) -> Order:
    whole = {"id": task_id or f"job-{attempt}", "command": ["true"], **spec}
    comes_after = [after] if after else []
    return understand(
        JobAssign(spec=whole, attempt=attempt, remaining_time=0, devices=devices or [], after=comes_after)
    )


def ended(attempt: str = "a1", exit_code: int = 0, **more: Any) -> ProcessEnded:
    return ProcessEnded(Ended(attempt=attempt, task_id=f"job-{attempt}", exit_code=exit_code, **more))


def sent(effects: list[Effect], kind: type[Any] | None = None) -> list[Any]:
    messages = [effect.message for effect in effects if isinstance(effect, Send)]
    return [message for message in messages if kind is None or isinstance(message, kind)]


def test_an_assignment_is_launched_and_accepted() -> None:
    state = worker()
    effects = do(state, Assigned(order("a1")))
    assert [type(effect) for effect in effects] == [LaunchTask, Send]
    assert sent(effects) == [JobAccepted(task_id="job-a1", attempt="a1")]
    assert state.slots().batch_in_use == 1


def test_a_service_takes_a_service_slot_unless_its_spec_names_the_other_pool() -> None:
    state = worker()
    do(state, Assigned(order("a1", type="service")), Assigned(order("a2", type="service", slot_pool="batch")))
    assert (state.slots().batch_in_use, state.slots().service_in_use) == (1, 1)


@pytest.mark.parametrize(
    "before",
    [
        [],
        [ended()],
        [ended(), OutcomeCollected(attempt="a1")],
        [CancelAsked(task_id="job-a1", attempt="a1")],
    ],
    ids=["runs", "ended", "has a kept result", "is being stopped"],
)
def test_an_assignment_that_is_here_already_changes_nothing(before: list[Event]) -> None:
    state = worker()
    do(state, Assigned(order("a1")), *before)
    assert do(state, Assigned(order("a1"))) == []


@pytest.mark.parametrize(
    ("holder", "wanted", "clashes"),
    [
        ({"gpu_count": 1, "devices": [0]}, {"gpu_count": 1, "devices": [0]}, True),
        ({"gpu_count": 2, "devices": [0, 1]}, {"gpu_count": 1, "devices": [1]}, True),
        ({"gpu_count": 1, "devices": [0]}, {"min_vram_gb": 2, "devices": [0]}, True),
        ({"min_vram_gb": 2, "devices": [0]}, {"gpu_count": 1, "devices": [0]}, True),
        ({"min_vram_gb": 2, "devices": [0]}, {"min_vram_gb": 2, "devices": [0]}, False),
        ({"gpu_count": 1, "devices": [0]}, {"gpu_count": 1, "devices": [1]}, False),
        ({"gpu_count": 1, "devices": [0]}, {}, False),
    ],
)
def test_a_gpu_that_one_task_has_for_itself_is_never_given_to_a_second(
    holder: dict[str, Any], wanted: dict[str, Any], clashes: bool
) -> None:
    state = worker()
    do(state, Assigned(order("a1", **holder)))
    effects = do(state, Assigned(order("a2", **wanted)))
    if not clashes:
        assert isinstance(effects[0], LaunchTask)
        return
    [result] = sent(effects)
    assert (result.state, result.fault, result.exit_code) == ("returned", "", None)
    assert "job-a1" in result.error
    assert not any(isinstance(effect, LaunchTask) for effect in effects)


def test_a_gpu_is_free_again_once_every_process_of_its_holder_is_gone() -> None:
    state = worker()
    do(state, Assigned(order("a1", gpu_count=1, devices=[0])), ended("a1"))
    assert isinstance(do(state, Assigned(order("a2", gpu_count=1, devices=[0])))[0], LaunchTask)


@pytest.mark.parametrize(
    ("end", "cancelled", "told"),
    [
        ({"exit_code": 0}, None, ("succeeded", "", "")),
        ({"exit_code": 3}, None, ("failed", "exit code 3", "")),
        ({"exit_code": 137}, None, ("failed", "exit code 137 (SIGKILL)", "")),
        ({"exit_code": 139}, None, ("failed", "exit code 139 (SIGSEGV)", "")),
        ({"exit_code": 255}, None, ("failed", "exit code 255", "")),
        ({"exit_code": 127, "error": "program 'x' not found"}, None, ("failed", "program 'x' not found", "")),
        ({"exit_code": 143, "stopped": "cancel: by ann"}, "by ann", ("cancelled", "by ann", "")),
        ({"exit_code": 0, "stopped": "cancel: by ann"}, None, ("cancelled", "by ann", "")),
        ({"exit_code": 143, "stopped": "max_runtime"}, None, ("failed", "max_runtime", "")),
        ({"exit_code": 143, "stopped": "max_runtime"}, "max_runtime", ("failed", "max_runtime", "")),
        ({"exit_code": 143, "stopped": "drain"}, None, ("returned", "the worker is shutting down", "drain")),
        ({"exit_code": 0, "stopped": "drain"}, None, ("returned", "the worker is shutting down", "drain")),
        ({"exit_code": 143, "stopped": "shutdown"}, None, ("returned", "the worker is shutting down", "drain")),
        ({"exit_code": 143, "stopped": "drain"}, "by ann", ("cancelled", "by ann", "")),
        ({"exit_code": 0}, "too late", ("succeeded", "", "")),
        ({"exit_code": 137, "error": "supervisor was killed"}, None, ("returned", "supervisor was killed", "worker")),
    ],
)
def test_how_an_end_is_told(end: dict[str, Any], cancelled: str | None, told: tuple[str, str, str]) -> None:
    result = outcome(Ended(attempt="a1", task_id="t", **end), cancelled)
    assert (result.state, result.error, result.fault) == told
    assert (result.task_id, result.attempt, result.exit_code) == ("t", "a1", end["exit_code"])


def test_a_result_is_sent_once_its_outcome_is_collected_and_forgotten_once_acknowledged() -> None:
    state = worker()
    do(state, Assigned(order("a1", metadata={"ostler.call": {"inline": ""}})))
    assert do(state, ended("a1")) == [CollectOutcome(task_id="job-a1", attempt="a1", call=True)]
    assert state.slots().batch_in_use == 0
    [result] = sent(do(state, OutcomeCollected(attempt="a1", result="dmFsdWU=")))
    assert (result.state, result.result) == ("succeeded", "dmFsdWU=")
    forgets = ForgetTask(task_id="job-a1", attempt="a1", done=True)
    assert do(state, Acknowledged(task_id="job-a1", attempt="a1")) == [forgets]
    assert state.is_quiet
    assert do(state, Acknowledged(task_id="job-a1", attempt="a1")) == []


def test_a_value_that_the_hub_will_not_take_makes_a_failure_of_a_success() -> None:
    state = worker()
    do(state, Assigned(order("a1", metadata={"ostler.call": {"inline": ""}})), ended("a1"))
    [result] = sent(do(state, OutcomeCollected(attempt="a1", error="the value was not taken")))
    assert (result.state, result.error) == ("failed", "the value was not taken")


def test_a_task_that_ends_without_a_hub_is_collected_after_the_next_registration() -> None:
    state = worker(connected=False)
    do(state, TookBack([(Held(attempt="a1", task_id="job-a1", started_at=NOW), Facts())]))
    assert do(state, ended("a1")) == []
    effects = do(state, Connected())
    [register] = sent(effects, Register)
    assert [(task.attempt, task.state) for task in register.active_tasks] == [("a1", "succeeded")]
    assert effects[-1] == CollectOutcome(task_id="job-a1", attempt="a1")


def test_an_outcome_that_was_cut_short_is_collected_again_when_the_hub_is_back() -> None:
    state = worker()
    do(state, Assigned(order("a1")), ended("a1"), ConnectionLost())
    assert do(state, OutcomeCollected(attempt="a1", unreachable=True)) == []
    assert CollectOutcome(task_id="job-a1", attempt="a1") in do(state, Connected())


def test_a_result_does_not_wait_for_ever_for_a_log_that_cannot_be_brought() -> None:
    state = worker()
    effects = do(state, Assigned(order("a1")), ended("a1"))
    pauses = []
    while isinstance(effects[0], CollectOutcome):
        pauses.append(effects[0].after_s)
        effects = do(state, OutcomeCollected(attempt="a1", unreachable=True))
    assert pauses == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert sent(effects)[0].state == "succeeded"


def test_a_registration_comes_first_then_kept_results_a_heartbeat_and_a_question() -> None:
    state = worker()
    do(state, Assigned(order("a1")), ended("a1"), OutcomeCollected(attempt="a1"))
    do(state, Assigned(order("a2")), ConnectionLost())
    register, result, beat, ready = sent(do(state, Connected()))
    assert isinstance(register, Register)
    assert (register.id, register.boot_id, register.protocol.batch) == ("w", "b", True)
    assert [(task.attempt, task.state) for task in register.active_tasks] == [("a2", "running"), ("a1", "succeeded")]
    assert register.active_tasks[0].started_at == "2023-11-14T22:13:20Z"
    assert isinstance(result, JobResult)
    assert isinstance(beat, Heartbeat)
    assert isinstance(ready, ReadyForWork)
    assert beat.slots == ready.slots
    assert ready.slots is not None
    assert ready.slots.batch_in_use == 1


def test_an_unacknowledged_result_is_sent_again_with_the_second_heartbeat() -> None:
    state = worker()
    do(state, Assigned(order("a1")), ended("a1"), OutcomeCollected(attempt="a1"))
    assert sent(do(state, BeatDue()), JobResult) == []
    assert len(sent(do(state, BeatDue()), JobResult)) == 1
    do(state, Acknowledged(task_id="job-a1", attempt="a1"))
    assert sent(do(state, BeatDue()), JobResult) == []


def test_a_heartbeat_tells_everything_and_is_silent_without_a_connection() -> None:
    state = worker()
    do(state, Assigned(order("a1")), OfferChanged(Capabilities(cpu_count=2)))
    [beat] = sent(do(state, BeatDue()), Heartbeat)
    assert (beat.worker_id, beat.sent_at, beat.draining) == ("w", "2023-11-14T22:13:20Z", False)
    assert beat.capability == Capabilities(cpu_count=2)
    assert [task.attempt for task in beat.active_tasks] == ["a1"]
    assert do(state, ConnectionLost(), BeatDue()) == []


def test_work_is_asked_for_with_a_heartbeat_only_while_there_is_a_free_slot() -> None:
    state = worker()
    assert len(sent(do(state, BeatDue()), ReadyForWork)) == 1
    do(state, *(Assigned(order(f"a{n}")) for n in range(4)))
    assert sent(do(state, BeatDue()), ReadyForWork) == []


@pytest.mark.parametrize("attempt", ["a1", ""], ids=["by attempt", "by task"])
def test_a_cancel_stops_the_task(attempt: str) -> None:
    state = worker()
    do(state, Assigned(order("a1")))
    asked = CancelAsked(task_id="job-a1", attempt=attempt, reason="by ann", grace_s=3.0)
    assert do(state, asked) == [StopTask(attempt="a1", reason="cancel: by ann", grace_s=3.0)]
    assert "a1" in state.held  # until its processes are gone


def test_a_cancel_because_of_the_budget_is_told_apart_from_a_users() -> None:
    state = worker()
    do(state, Assigned(order("a1")))
    effects = do(state, CancelAsked(task_id="job-a1", attempt="a1", reason="max_runtime"))
    assert effects == [StopTask(attempt="a1", reason="max_runtime", grace_s=10.0)]


@pytest.mark.parametrize("attempt", ["gone", ""], ids=["by attempt", "by task"])
def test_a_cancel_of_what_is_not_here_is_answered_so_that_nothing_stays_held_for_it(attempt: str) -> None:
    state = worker()
    do(state, Assigned(order("a1")))
    [result] = sent(do(state, CancelAsked(task_id="other", attempt=attempt)))
    assert (result.task_id, result.attempt, result.state) == ("other", attempt, "cancelled")
    assert len(state.results) == 1
    do(state, Acknowledged(task_id="other", attempt=attempt))
    assert not state.results


def test_a_cancel_of_another_attempt_does_not_touch_the_one_that_runs() -> None:
    state = worker()
    do(state, Assigned(order("a2", "job")))
    [result] = sent(do(state, CancelAsked(task_id="job", attempt="a1")))
    assert (result.attempt, result.state) == ("a1", "cancelled")
    assert "a2" in state.held


@pytest.mark.parametrize("attempt", ["a1", ""])
@pytest.mark.parametrize("collected", [True, False])
def test_a_cancel_of_what_has_ended_is_answered_by_the_result_that_is_on_its_way(attempt: str, collected: bool) -> None:
    state = worker()
    do(state, Assigned(order("a1")), ended("a1"))
    if collected:
        do(state, OutcomeCollected(attempt="a1"))
    assert do(state, CancelAsked(task_id="job-a1", attempt=attempt)) == []


def test_a_task_that_could_not_be_launched_is_handed_back_as_the_workers_fault() -> None:
    state = worker()
    do(state, Assigned(order("a1")))
    [result] = sent(do(state, LaunchFailed(attempt="a1", error="disk full")))
    assert (result.state, result.fault, result.error) == ("returned", "worker", "disk full")
    assert not state.held


@pytest.mark.parametrize(
    ("before", "by_task", "told"),
    [([], True, "failed"), ([CancelAsked(task_id="job-a1", attempt="a1")], False, "cancelled")],
)
def test_a_launch_that_fails_elsewhere_too_or_was_called_off_is_no_fault_of_the_worker(
    before: list[Event], by_task: bool, told: str
) -> None:
    state = worker()
    do(state, Assigned(order("a1")), *before)
    [result] = sent(do(state, LaunchFailed(attempt="a1", error="no such function", by_task=by_task)))
    assert (result.state, result.fault) == (told, "")


def test_a_spec_that_cannot_be_read_fails_its_task() -> None:
    state = worker()
    [result] = sent(do(state, Misassigned(task_id="t", attempt="a1", error="no command")))
    assert (result.state, result.error) == ("failed", "no command")


def test_a_drain_is_told_at_once_and_stops_services_but_not_batch_tasks() -> None:
    state = worker()
    do(state, Assigned(order("a1")), Assigned(order("a2", type="service")))
    beat, stop = do(state, DrainAsked())
    assert isinstance(beat, Send)
    assert isinstance(beat.message, Heartbeat)
    assert beat.message.draining
    assert stop == StopTask(attempt="a2", reason="drain", grace_s=10.0)


def test_a_drain_lets_models_go_on_until_the_gateway_stops_them_or_the_drain_ends() -> None:
    state = worker()
    do(state, Assigned(order("a1", type="model")), Assigned(order("a2", type="model")))
    assert not [effect for effect in do(state, DrainAsked()) if isinstance(effect, StopTask)]
    [stop] = do(state, CancelAsked(task_id="t", attempt="a1", reason="drained", grace_s=3.0))
    assert isinstance(stop, StopTask) and stop.attempt == "a1"
    do(state, ended("a1", 143, stopped=stop.reason))
    assert do(state, DrainEnded(grace_s=2.0)) == [StopTask(attempt="a2", reason="drain", grace_s=2.0)]


def test_a_draining_worker_hands_new_work_back_and_asks_for_none() -> None:
    state = worker()
    do(state, DrainAsked())
    [result] = sent(do(state, Assigned(order("a1"))))
    assert (result.state, result.fault) == ("returned", "drain")
    assert sent(do(state, BeatDue()), ReadyForWork) == []
    do(state, ConnectionLost())
    kinds = [type(message) for message in sent(do(state, Connected()))]
    assert kinds == [Register, JobResult, Heartbeat]


def test_the_end_of_a_drain_stops_and_returns_what_is_left() -> None:
    state = worker()
    do(state, Assigned(order("a1")), DrainAsked())
    assert do(state, DrainEnded(grace_s=2.0)) == [StopTask(attempt="a1", reason="drain", grace_s=2.0)]
    do(state, ended("a1", 143, stopped="drain"))
    [result] = sent(do(state, OutcomeCollected(attempt="a1")))
    assert (result.state, result.fault) == ("returned", "drain")
    assert not state.is_quiet
    do(state, Acknowledged(task_id="job-a1", attempt="a1"))
    assert state.is_quiet


def test_what_an_earlier_process_left_is_taken_back_running_or_ended() -> None:
    state = worker(connected=False)
    runs = Held(attempt="a1", task_id="job-a1", started_at=NOW - 60)
    over = Held(attempt="a2", task_id="job-a2", started_at=NOW - 60, ended=ended("a2", 5).end)
    do(state, TookBack([(runs, Facts(devices=(0,), whole=True)), (over, Facts(call=True))]))
    assert state.slots().batch_in_use == 1
    effects = do(state, Connected())
    assert [(t.attempt, t.state) for t in sent(effects, Register)[0].active_tasks] == [
        ("a1", "running"),
        ("a2", "failed"),
    ]
    assert effects[-1] == CollectOutcome(task_id="job-a2", attempt="a2", call=True, succeeded=False)
    assert sent(do(state, Assigned(order("a3", gpu_count=1, devices=[0]))))[0].state == "returned"


def test_a_service_that_is_given_up_is_stopped_once() -> None:
    state = worker()
    do(state, Assigned(order("a1", type="service")))
    dead = ServiceProbed(attempt="a1", not_alive="no answer")
    assert [type(effect) for effect in do(state, dead)] == [Send]
    assert do(state, dead) == []
    assert do(state, dead) == [StopTask(attempt="a1", reason="liveness failed: no answer", grace_s=10.0)]
    assert do(state, dead, dead, dead) == []


@pytest.mark.parametrize(
    ("cancelled", "told"),
    [(None, ("failed", "liveness failed: no answer", "")), ("by ann", ("cancelled", "by ann", ""))],
)
def test_a_service_stopped_for_its_liveness_has_failed_unless_the_hub_had_given_it_up(
    cancelled: str | None, told: tuple[str, str, str]
) -> None:
    end = Ended(attempt="a1", task_id="t", exit_code=143, stopped="liveness failed: no answer")
    result = outcome(end, cancelled)
    assert (result.state, result.error, result.fault) == told


def test_health_that_nobody_hears_is_told_after_the_next_registration() -> None:
    state = worker(connected=False)
    do(state, Assigned(order("a1", type="service")))
    assert do(state, ServiceProbed(attempt="a1")) == []
    assert sent(do(state, Connected()), ServiceHealth) == [ServiceHealth(task_id="job-a1", healthy=True)]


def test_a_service_that_was_taken_back_is_watched_again() -> None:
    state = worker(connected=False)
    facts = Facts(pool="service", service=True, port=20_001)
    held = Held(attempt="a1", task_id="t", started_at=1.0)
    assert do(state, TookBack([(held, facts)])) == [WatchService(attempt="a1", facts=facts)]


# Sent ahead


def with_one_ahead() -> State:
    state = worker()
    do(state, Assigned(order("a1")), Assigned(order("a2", after="a1")), Assigned(order("a3", after="a2")))
    return state


def test_one_that_was_sent_ahead_is_launched_and_neither_accepted_nor_counted_before_it_begins() -> None:
    state = worker()
    do(state, Assigned(order("a1")))
    effects = do(state, Assigned(order("a2", after="a1")))
    assert [type(effect) for effect in effects] == [LaunchTask]
    assert state.slots().batch_in_use == 1
    assert [(line.attempt, line.state) for line in state.account()] == [("a1", "running"), ("a2", "waiting")]


def test_one_that_was_sent_ahead_of_nobody_who_is_here_begins_at_once() -> None:
    effects = do(worker(), Assigned(order("a2", after="gone")))
    assert sent(effects) == [JobAccepted(task_id="job-a2", attempt="a2")]


def test_the_end_of_the_one_before_is_the_beginning_of_the_next_and_of_no_other() -> None:
    state = with_one_ahead()
    assert sent(do(state, ended("a1")), JobAccepted) == [JobAccepted(task_id="job-a2", attempt="a2")]
    assert [(line.attempt, line.state) for line in state.account()][:2] == [("a2", "running"), ("a3", "waiting")]


def test_a_start_that_fails_lets_the_next_begin() -> None:
    effects = do(with_one_ahead(), LaunchFailed(attempt="a1", error="no disk"))
    assert sent(effects, JobAccepted) == [JobAccepted(task_id="job-a2", attempt="a2")]


def test_one_sent_behind_another_that_ended_before_its_turn_waits_for_what_that_one_waited_for() -> None:
    state = worker()
    do(state, Assigned(order("a1")), Assigned(order("a2", after="a1")))
    do(state, LaunchFailed(attempt="a2", error="the function could not be fetched", by_task=True))
    (launch,) = do(state, Assigned(order("a3", after="a2")))
    assert isinstance(launch, LaunchTask) and launch.order.after == ("a1",)
    assert state.slots().batch_in_use == 1
    assert sent(do(state, ended("a1")), JobAccepted) == [JobAccepted(task_id="job-a3", attempt="a3")]


def test_what_one_waited_for_is_forgotten_when_the_hub_knows_of_its_end() -> None:
    state = with_one_ahead()
    do(state, LaunchFailed(attempt="a2", error="no disk"), Acknowledged(task_id="job-a2", attempt="a2"))
    assert state.instead == {}


def test_only_what_has_not_begun_is_called_back() -> None:
    state = with_one_ahead()
    asked = {
        attempt: CancelAsked(task_id=f"job-{attempt}", attempt=attempt, unstarted=True) for attempt in ("a1", "a2")
    }
    assert do(state, asked["a1"]) == []
    assert do(state, asked["a2"]) == [CallBack(attempt="a2")]


def test_one_that_was_called_back_is_returned_and_the_next_waits_for_the_one_before_it() -> None:
    state = with_one_ahead()
    effects = do(state, ended("a2", 143, stopped="called back"), OutcomeCollected(attempt="a2"))
    (result,) = sent(effects, JobResult)
    assert (result.state, result.fault, result.error) == ("returned", "drain", "called back")
    assert [(line.attempt, line.state) for line in state.account()][:2] == [("a1", "running"), ("a3", "waiting")]
    assert sent(do(state, ended("a1")), JobAccepted) == [JobAccepted(task_id="job-a3", attempt="a3")]


def test_a_call_for_one_that_is_not_here_is_answered() -> None:
    effects = do(worker(), CancelAsked(task_id="t", attempt="a9", unstarted=True))
    assert [(one.attempt, one.state) for one in sent(effects, JobResult)] == [("a9", "cancelled")]


def test_a_drain_hands_back_what_has_not_begun() -> None:
    effects = do(with_one_ahead(), DrainAsked())
    assert [effect for effect in effects if isinstance(effect, CallBack)] == [
        CallBack(attempt="a2"),
        CallBack(attempt="a3"),
    ]


def test_what_an_earlier_process_left_waiting_is_told_as_waiting() -> None:
    state = worker(connected=False)
    found = [
        (Held(attempt="a1", task_id="job-a1", started_at=NOW), Facts()),
        (Held(attempt="a2", task_id="job-a2", started_at=0.0, after=["a1"]), Facts()),
    ]
    (hello,) = sent(do(state, TookBack(found), Connected()), Register)
    assert [(line.attempt, line.state) for line in hello.active_tasks] == [("a1", "running"), ("a2", "waiting")]
    assert hello.protocol.ahead > 0
