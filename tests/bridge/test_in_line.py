"""A task that its worker has given to somebody else's queue: the hub keeps it there, and nothing of it is spent."""

from tests.core.core_fleet import HEARTBEAT_S, CoreFleet
from tests.worker.test_core import do, ended, order, sent, worker

from ostler.domain.worker import ActiveTask, Capabilities
from ostler.runtime.base import Held
from ostler.wire.messages import Heartbeat, JobAccepted, Register
from ostler.worker.events import (
    Assigned,
    BeatDue,
    Begun,
    CallBack,
    CancelAsked,
    Connected,
    DrainAsked,
    InLine,
    LaunchTask,
    OfferChanged,
    StopTask,
    TookBack,
)
from ostler.worker.orders import Facts
from ostler.worker.state import State

QUEUE = "its turn in Slurm"


def in_line(core: CoreFleet, waits_for: str = QUEUE) -> list[ActiveTask]:
    return [ActiveTask(task_id="job", attempt=core.attempt("job"), state="waiting", waits_for=waits_for)]


def placed() -> CoreFleet:
    core = CoreFleet()
    core.worker("node")
    core.submit("job", max_runtime_hours=0.1)
    return core


def wait_in_line(core: CoreFleet, seconds: float, waits_for: str = QUEUE) -> None:
    for _ in range(int(seconds // HEARTBEAT_S)):
        core.wait(HEARTBEAT_S, silent=True)
        core.beat("node", in_line(core, waits_for))


def test_it_stays_where_it_is_for_as_long_as_its_worker_says_so_and_spends_no_time() -> None:
    core = placed()
    attempt = core.attempt("job")
    wait_in_line(core, 3600, "its turn in Slurm (job 7: Priority)")
    assert (core.state("job"), core.attempt("job")) == ("assigned", attempt)
    assert core.job("job").reason == "waits for its turn in Slurm (job 7: Priority)"
    assert "has not begun: it waits for its turn in Slurm (job 7: Priority)" in core.why("job").summary
    core.accept("job")
    assert (core.state("job"), core.job("job").reason) == ("running", "")
    core.wait(300)
    assert core.cancelled() == [], "its budget of six minutes counts from when it began"


def test_a_worker_that_says_nothing_of_it_any_more_has_not_accepted_it() -> None:
    core = placed()
    attempt = core.attempt("job")
    wait_in_line(core, 60)
    assert core.attempt("job") == attempt
    core.wait(31)
    assert core.attempt("job") != attempt
    assert core.task("job").losses == 0


def test_it_keeps_its_place_over_a_cut_and_over_a_restart_of_the_hub() -> None:
    core = placed()
    attempt = core.attempt("job")
    wait_in_line(core, 20)
    holds = in_line(core)
    core.leave("node")
    assert core.state("job") == "orphaned"
    core.register("node", holds=holds, slots=1)
    assert (core.state("job"), core.attempt("job"), core.cancelled()) == ("assigned", attempt, [])
    core.restart(away=10)
    core.register("node", holds=holds, slots=1)
    assert (core.state("job"), core.attempt("job"), core.cancelled()) == ("assigned", attempt, [])
    wait_in_line(core, 300)
    core.accept("job")
    assert (core.state("job"), core.task("job").losses) == ("running", 0)


def test_cancelled_in_line_it_is_told_to_end_and_its_room_is_kept_until_it_is_out_of_it() -> None:
    core = placed()
    wait_in_line(core, 20)
    attempt = core.attempt("job")
    core.cancel("job")
    assert core.cancelled() == [("node", attempt)]
    assert core.state("job") == "cancelled"
    core.end("job", "cancelled", attempt=attempt, worker="node")
    assert not core.fleet.held


def test_its_room_is_kept_for_as_long_as_its_worker_says_that_it_is_still_in_line_though_cancelled() -> None:
    core = placed()
    wait_in_line(core, 20)
    attempt, holds = core.attempt("job"), in_line(core)
    core.cancel("job")
    for _ in range(12):
        core.wait(HEARTBEAT_S, silent=True)
        core.beat("node", holds)
        assert core.cancelled() == [("node", attempt)], "it is told again and again"
    assert attempt in core.fleet.held
    core.wait(31)
    assert not core.fleet.held, "and no longer than that"


def queued(**more: object) -> State:
    return worker(queue=QUEUE, **more)


def test_a_worker_with_a_queue_accepts_when_the_turn_has_come() -> None:
    state = queued()
    effects = do(state, Assigned(order("a1")))
    assert [type(effect) for effect in effects] == [LaunchTask]
    assert isinstance(effects[0], LaunchTask)
    assert effects[0].order.after == (), "the queue is no attempt that the runtime could wait for"
    (beat,) = sent(do(state, BeatDue()), Heartbeat)
    assert [(one.state, one.waits_for) for one in beat.active_tasks] == [("waiting", QUEUE)]
    do(state, InLine(attempt="a1", waits_for="its turn in Slurm (job 7: Priority)"))
    (beat,) = sent(do(state, BeatDue()), Heartbeat)
    assert beat.active_tasks[0].waits_for == "its turn in Slurm (job 7: Priority)"
    assert sent(do(state, Begun(attempt="a1"))) == [JobAccepted(task_id="job-a1", attempt="a1")]
    assert do(state, Begun(attempt="a1")) == []
    (beat,) = sent(do(state, BeatDue()), Heartbeat)
    assert [(one.state, one.waits_for) for one in beat.active_tasks] == [("running", "")]


def test_the_end_of_one_that_nobody_saw_begin_is_an_end_like_any_other() -> None:
    state = queued()
    do(state, Assigned(order("a1")), ended("a1", 0))
    assert not state.held
    assert do(state, Begun(attempt="a1")) == []


def test_a_drain_calls_back_what_is_in_line_and_a_cancel_stops_it() -> None:
    state = queued()
    do(state, Assigned(order("a1")), Assigned(order("a2")), Begun(attempt="a2"))
    (stopped,) = do(state, CancelAsked(task_id="job-a1", attempt="a1", reason="no"))
    assert isinstance(stopped, StopTask)
    assert [effect.attempt for effect in do(state, DrainAsked()) if isinstance(effect, CallBack)] == ["a1"]


def test_what_an_earlier_process_left_in_line_is_still_there_and_nothing_is_asked_for_ahead() -> None:
    state = queued(connected=False)
    left = [Held(attempt="a1", task_id="t1", started_at=0.0), Held(attempt="a2", task_id="t2", started_at=5.0)]
    do(state, TookBack([(held, Facts()) for held in left]))
    (hello,) = sent(do(state, Connected()), Register)
    assert [(one.state, one.waits_for) for one in hello.active_tasks] == [("waiting", QUEUE), ("running", "")]
    assert (hello.protocol.ahead, hello.protocol.beside) == (0, False)


def test_an_offer_that_comes_with_slots_is_told_at_once() -> None:
    state = queued()
    (beat,) = sent(do(state, OfferChanged(Capabilities(cpu_count=2), 2)), Heartbeat)
    assert (beat.capability.cpu_count, beat.slots.batch_total) == (2, 2)
