"""Tasks sent before there is room for them: in order, holding nothing, and given back to whoever comes first."""

import pytest
from tests.core.core_fleet import CoreFleet, capabilities, entry, holding

from ostler.core import index
from ostler.core.effects import AssignTask, CancelTask
from ostler.core.events import TaskEnded
from ostler.core.placing.ahead import SENT_AT_ONCE
from ostler.core.placing.place import settled
from ostler.core.timers import ACCEPTANCE
from ostler.domain.quota import Quota, Quotas
from ostler.domain.scheduling import Scheduling
from ostler.domain.states import ASSIGNED, CANCELLED, ORPHANED, PENDING, RUNNING, SUCCEEDED
from ostler.domain.worker import WAITING, Slots
from ostler.ledger.ahead import placed, task_of

AHEAD = 4


def fleet(*, ahead: int = AHEAD, slots: int = 1, runs: int = 12, ran_s: float = 0.005) -> CoreFleet:
    """One worker that takes tasks ahead, and a kind of job that is known to be short."""
    core = CoreFleet()
    core.register("w", capabilities(cores=8, memory=64), slots=slots, ahead=ahead)
    for number in range(runs):
        core.submit(f"known{number}")
        core.accept(f"known{number}")
        core.end(f"known{number}", run_s=ran_s)
    return core


@pytest.fixture
def core() -> CoreFleet:
    return fleet()


def ahead(core: CoreFleet) -> dict[str, str]:
    """Those that wait for another's end, and for whose."""
    held = core.fleet.held.values()
    return {one.task_id: one.after.task_id for one in held if one.after is not None}


def together(core: CoreFleet) -> list[int]:
    """The indices of those that are written down together."""
    return [index for sent in core.ledger.load().ahead for index, _, _ in sent.attempts]


def called_back(core: CoreFleet) -> list[str]:
    return [one.task_id for one in core.of(CancelTask) if one.unstarted]


def give_back(core: CoreFleet, *task_ids: str) -> None:
    for task_id in task_ids:
        core.end(task_id, "returned", fault="drain", error="called back")


def test_the_next_of_an_array_are_sent_behind_the_one_that_runs(core: CoreFleet) -> None:
    core.submit("a", array=10)
    assert core.assigned() == ["a.0", "a.1", "a.2", "a.3", "a.4"]
    assert ahead(core) == {"a.1": "a.0", "a.2": "a.1", "a.3": "a.2", "a.4": "a.3"}
    assert [one.after for one in core.of(AssignTask)] == [(), *((core.attempt(f"a.{n}"),) for n in range(4))]
    assert core.states("a.0", "a.4") == [ASSIGNED, ASSIGNED]
    assert core.fleet.workers["w"].room.placed["batch"] == 1


def test_the_next_jobs_of_a_lane_are_sent_in_order_of_arrival(core: CoreFleet) -> None:
    for number in range(8):
        core.submit(f"j{number}")
    core.end("j0", run_s=0.01)
    assert ahead(core) == {"j2": "j1", "j3": "j2", "j4": "j3", "j5": "j4"}


def test_an_array_of_which_a_task_is_sent_behind_another_job_is_running(core: CoreFleet) -> None:
    core.submit("first")
    core.submit("second")
    core.submit("a", array=2)
    assert core.job("a").state == PENDING
    core.end("first", run_s=0.01)
    assert ahead(core) == {"a.0": "second", "a.1": "a.0"}
    assert core.job("a").state == RUNNING


def test_whoever_is_sent_ahead_has_the_room_of_the_one_before_it_at_its_end(core: CoreFleet) -> None:
    core.submit("a", array=2, min_cpu_cores=3, min_memory_gb=4)
    core.accept("a.0")
    room = core.free("w")
    core.end("a.0", run_s=0.01)
    assert core.free("w") == room
    assert (core.state("a.1"), ahead(core)) == (ASSIGNED, {})
    core.accept("a.1")
    assert core.state("a.1") == RUNNING
    core.end("a.1", run_s=0.01)
    assert core.free("w") == (8000, 64 * 1024, ())


def test_a_place_that_is_freed_is_filled_up_again(core: CoreFleet) -> None:
    core.submit("a", array=10)
    core.end("a.0", run_s=0.01)
    assert ahead(core) == {"a.2": "a.1", "a.3": "a.2", "a.4": "a.3", "a.5": "a.4"}


def test_many_are_sent_in_portions_one_a_pass_and_until_then_nothing_is_settled() -> None:
    core = fleet(ahead=2 * SENT_AT_ONCE + 1, slots=2, ran_s=0.0005)
    core.submit("a", array=1000)
    assert (len(ahead(core)), settled(core.fleet)) == (SENT_AT_ONCE, False)
    core.turn()
    assert (len(ahead(core)), settled(core.fleet)) == (2 * SENT_AT_ONCE, False)
    assert len(core.turn()) == 1
    assert settled(core.fleet)
    assert core.turn() == []


def test_two_places_are_filled_alike() -> None:
    core = fleet(slots=2)
    core.submit("a", array=10)
    assert ahead(core) == {"a.2": "a.0", "a.3": "a.1", "a.4": "a.2", "a.5": "a.3"}


def test_a_plain_worker_is_sent_nothing_beyond_its_room() -> None:
    core = fleet(ahead=0)
    core.submit("a", array=10)
    assert core.assigned() == ["a.0"]


@pytest.mark.parametrize(
    "spec",
    [
        {"preemptible": True},
        {"on_lost_contact": "stop"},
        {"snapshot_id": "a" * 64},
        {"job_tier": "training"},
        {"command": ["unknown"]},
    ],
)
def test_only_short_plain_tasks_go_ahead(core: CoreFleet, spec: dict[str, object]) -> None:
    if "job_tier" in spec or "command" in spec:
        core = fleet(runs=0)
    core.submit("a", array=10, **{key: value for key, value in spec.items() if key != "command"})
    assert ahead(core) == {}


def test_a_kind_that_takes_long_does_not_go_ahead() -> None:
    core = fleet(ran_s=5.0)
    core.submit("a", array=10)
    assert ahead(core) == {}


def test_what_waits_for_one_place_takes_no_longer_than_a_moment() -> None:
    core = fleet(ran_s=0.15)
    core.submit("a", array=10)
    assert 1 <= len(ahead(core)) <= 3


def test_no_more_is_sent_while_another_user_waits_for_such_room(core: CoreFleet) -> None:
    core.submit("long", user_id="ann")
    core.submit("b", user_id="bob")
    core.submit("a", user_id="ann", array=10)
    assert ahead(core) == {}


def test_another_user_who_comes_to_wait_has_those_ahead_called_back(core: CoreFleet) -> None:
    core.submit("a", array=10)
    core.accept("a.0")
    core.submit("b", user_id="bob")
    assert called_back(core) == ["a.4", "a.3", "a.2", "a.1"]
    assert core.state("a.1") == ASSIGNED
    give_back(core, "a.4", "a.3", "a.2", "a.1")
    assert core.states("a.1", "a.4") == [PENDING, PENDING]
    assert core.task("a.1").losses == 0
    core.end("a.0", run_s=0.01)
    assert core.state("b") == ASSIGNED


def test_higher_priority_that_comes_to_wait_has_those_ahead_called_back(core: CoreFleet) -> None:
    core.submit("a", array=3)
    core.submit("urgent", priority=5)
    assert called_back(core) == ["a.2", "a.1"]


def test_lower_priority_that_comes_to_wait_changes_nothing(core: CoreFleet) -> None:
    core.submit("a", array=3)
    core.submit("later", priority=-5, user_id="bob")
    assert called_back(core) == []
    assert len(ahead(core)) == 2


def test_one_that_needs_what_that_room_is_not_changes_nothing(core: CoreFleet) -> None:
    core.submit("a", array=3)
    core.submit("large", priority=5, min_cpu_cores=64)
    assert called_back(core) == []


def test_one_that_has_begun_before_it_could_be_called_back_goes_on(core: CoreFleet) -> None:
    core.submit("a", array=3)
    core.accept("a.0")
    core.submit("urgent", priority=5)
    assert called_back(core) == ["a.2", "a.1"]
    give_back(core, "a.2")
    core.end("a.0", run_s=0.01)
    assert core.state("urgent") == PENDING  # the room may be in use: it is a.1's until its worker has answered
    core.accept("a.1")
    assert core.states("a.1", "a.2") == [RUNNING, PENDING]
    core.end("a.1", run_s=0.01)
    assert core.states("a.1", "urgent") == [SUCCEEDED, ASSIGNED]


def test_a_call_that_finds_nothing_there_costs_the_task_nothing(core: CoreFleet) -> None:
    core.submit("a", array=2)
    core.submit("urgent", priority=5)
    core.end("a.1", "cancelled", error="not on this worker")
    assert (core.state("a.1"), core.task("a.1").losses) == (PENDING, 0)


def test_a_start_tells_that_those_before_it_are_gone(core: CoreFleet) -> None:
    core.submit("a", array=3, min_cpu_cores=2)
    core.accept("a.0")
    core.accept("a.2")
    assert core.free("w")[0] == 6000
    assert ahead(core) == {}
    core.end("a.0", run_s=0.01)
    core.end("a.1", run_s=0.01)
    assert core.states("a.0", "a.1", "a.2") == [SUCCEEDED, SUCCEEDED, RUNNING]
    core.end("a.2", run_s=0.01)
    assert core.free("w")[0] == 8000


def test_an_end_that_comes_before_that_of_the_one_before_it_counts(core: CoreFleet) -> None:
    core.submit("a", array=4)
    core.end("a.1", run_s=0.01)
    assert (core.state("a.1"), ahead(core)) == (SUCCEEDED, {"a.3": "a.2"})
    core.end("a.0", run_s=0.01)
    assert core.state("a.0") == SUCCEEDED


def test_acceptance_counts_from_the_end_of_the_one_before(core: CoreFleet) -> None:
    core.submit("a", array=2)
    core.accept("a.0")
    core.wait(60)
    assert core.state("a.1") == ASSIGNED
    core.end("a.0", run_s=60.0)
    sent = core.attempt("a.1")
    core.wait(29)
    assert core.attempt("a.1") == sent
    core.wait(2)
    assert core.ledger.attempts_of("a.1")[0].reason == "w did not accept it within 30 s"


def test_a_worker_that_accepts_nothing_keeps_nobody_behind_it(core: CoreFleet) -> None:
    core.submit("a", array=5)
    core.drain("w")
    core.wait(31)
    assert core.states(*(f"a.{n}" for n in range(5))) == [PENDING] * 5
    assert core.free("w") == (8000, 64 * 1024, ())


def test_a_user_counts_for_what_runs_and_not_for_what_is_ahead(core: CoreFleet) -> None:
    core.fleet.set_quotas(Quotas(users={"ann": Quota(running_jobs=2)}))
    core.submit("a", array=5)
    assert core.fleet.running_of["ann"][0] == 1
    core.accept("a.0")
    core.end("a.0", run_s=0.01)
    assert core.fleet.running_of["ann"][0] == 1


def test_a_start_is_charged_when_it_takes_room(core: CoreFleet) -> None:
    core.submit("a", array=5)
    before = core.fleet.usage.of("ann")
    assert len(ahead(core)) == 4
    core.end("a.0", run_s=0.01)
    assert core.fleet.usage.of("ann") > before


def test_one_that_is_cancelled_ahead_shows_at_once_and_those_behind_it_come_back(core: CoreFleet) -> None:
    core.submit("a", array=4)
    core.accept("a.0")
    core.cancel("a", 1)
    assert core.state("a.1") == CANCELLED
    assert called_back(core) == ["a.3", "a.2"]
    give_back(core, "a.3", "a.2")
    core.end("a.1", "cancelled")
    assert core.state("a.1") == CANCELLED
    assert core.fleet.workers["w"].room.placed["batch"] == 1


def test_one_that_is_requeued_ahead_runs_once_its_worker_has_let_it_go(core: CoreFleet) -> None:
    core.submit("a", array=2)
    core.accept("a.0")
    old = core.attempt("a.1")
    core.requeue("a", 1)
    assert core.state("a.1") == PENDING
    core.end("a.1", "cancelled", attempt=old)
    core.end("a.0", run_s=0.01)
    assert core.attempt("a.1") != old


def test_a_drained_worker_gives_back_what_it_was_sent_ahead(core: CoreFleet) -> None:
    core.submit("a", array=3)
    core.drain("w")
    assert called_back(core) == ["a.2", "a.1"]


def test_a_worker_that_went_silent_has_its_tasks_ahead_orphaned_with_the_others(core: CoreFleet) -> None:
    core.submit("a", array=3)
    core.accept("a.0")
    core.leave("w")
    assert core.states("a.0", "a.1", "a.2") == [ORPHANED] * 3
    core.wait(31)
    assert core.states("a.0", "a.1", "a.2") == [PENDING] * 3
    assert [core.task(f"a.{n}").losses for n in range(3)] == [1, 0, 0]


def test_a_worker_that_comes_back_hands_back_what_has_not_begun(core: CoreFleet) -> None:
    core.submit("a", array=3)
    core.accept("a.0")
    first, second, third = (core.attempt(f"a.{n}") for n in range(3))
    core.leave("w")
    account = holding(("a.0", first)) + holding(("a.1", second), ("a.2", third), state=WAITING)
    core.register("w", holds=account, ahead=AHEAD)
    assert list(dict.fromkeys(called_back(core))) == ["a.2", "a.1"]
    assert core.states("a.0", "a.1") == [RUNNING, ORPHANED]
    give_back(core, "a.2", "a.1")
    assert core.states("a.1", "a.2") == [PENDING, PENDING]


def test_a_worker_that_comes_back_without_them_has_them_no_more(core: CoreFleet) -> None:
    core.submit("a", array=3)
    core.accept("a.0")
    core.leave("w")
    core.register("w", boot_id="other")
    assert core.states("a.0", "a.1", "a.2") == [PENDING] * 3
    assert [core.task(f"a.{n}").losses for n in range(3)] == [1, 0, 0]


def test_a_hub_that_restarts_holds_their_room_until_it_knows_better(core: CoreFleet) -> None:
    core.submit("a", array=3, min_cpu_cores=2)
    core.accept("a.0")
    account = holding(("a.0", core.attempt("a.0")))
    account += holding(*((f"a.{n}", core.attempt(f"a.{n}")) for n in (1, 2)), state=WAITING)
    core.restart()
    assert core.states("a.0", "a.1", "a.2") == [ORPHANED] * 3
    assert core.free("w")[0] == 2000
    core.register("w", holds=account, slots=1, ahead=AHEAD)
    give_back(core, "a.2", "a.1")
    assert core.free("w")[0] == 6000
    core.end("a.0", run_s=0.01)
    assert core.state("a.1") == ASSIGNED


def test_a_heartbeat_that_lacks_one_that_was_sent_ahead_has_it_sent_again(core: CoreFleet) -> None:
    core.submit("a", array=2)
    core.beat("w", holding(("a.0", core.attempt("a.0"))))
    assert [(one.task_id, one.after) for one in core.of(AssignTask)] == [("a.1", (core.attempt("a.0"),))]


def test_a_heartbeat_that_shows_it_waiting_changes_nothing(core: CoreFleet) -> None:
    core.submit("a", array=2)
    account = holding(("a.0", core.attempt("a.0"))) + holding(("a.1", core.attempt("a.1")), state=WAITING)
    core.beat("w", account)
    assert (core.of(AssignTask), core.of(CancelTask)) == ([], [])
    assert core.state("a.1") == ASSIGNED


def test_one_that_waits_and_was_called_back_is_called_again_until_it_is_answered(core: CoreFleet) -> None:
    core.submit("a", array=2)
    core.submit("urgent", priority=5)
    account = holding(("a.0", core.attempt("a.0"))) + holding(("a.1", core.attempt("a.1")), state=WAITING)
    core.beat("w", account)
    assert called_back(core) == ["a.1"]


def test_one_that_nobody_knows_and_that_waits_takes_no_room(core: CoreFleet) -> None:
    core.beat("w", holding(("ghost", "old"), state=WAITING))
    assert core.cancelled() == [("w", "old")]
    assert core.fleet.workers["w"].room.placed["batch"] == 0


def test_a_worker_with_nothing_to_do_gets_half_of_the_longest_line() -> None:
    core = fleet(ran_s=0.05)
    core.submit("a", array=5)
    assert len(ahead(core)) == 4
    core.register("idle", capabilities(cores=8, memory=64))
    core.beat("idle", slots=Slots(batch_total=1))
    assert called_back(core) == ["a.4", "a.3"]
    give_back(core, "a.4", "a.3")
    assert core.where("a.4") == "idle"


def test_why_says_what_one_that_was_sent_ahead_waits_for(core: CoreFleet) -> None:
    core.submit("a", array=2)
    holder = core.holder("a.1")
    assert holder is not None
    assert holder.why == "sent ahead: it starts on w when a.0 ends"
    assert task_of(core.ledger, "a", 1)[1][0].why == holder.why


def test_nobody_is_sent_behind_one_that_its_worker_was_told_to_let_go(core: CoreFleet) -> None:
    core.submit("a", array=2)
    core.accept("a.0")
    old = core.attempt("a.1")
    core.cancel("a", 1)
    core.submit("b", array=3)
    assert ahead(core) == {"a.1": "a.0"}
    core.end("a.1", "cancelled", attempt=old, worker="w")
    assert ahead(core) == {"b.0": "a.0", "b.1": "b.0", "b.2": "b.1"}


def test_one_that_failed_before_its_turn_leaves_the_room_to_the_one_that_runs(core: CoreFleet) -> None:
    core.submit("a", array=3, min_cpu_cores=2)
    core.accept("a.0")
    core.end("a.1", "failed", error="the function could not be fetched: not found")
    assert core.free("w")[0] == 6000
    assert ahead(core) == {"a.2": "a.0"}


def test_short_ones_do_not_wait_for_the_end_of_a_long_one() -> None:
    core = fleet(slots=2)
    core.submit("long", name="long")
    core.accept("long")
    core.submit("a", array=4)
    assert ahead(core) == {"a.1": "a.0", "a.2": "a.1", "a.3": "a.2"}


def test_one_that_was_thought_to_be_short_keeps_nobody_waiting_for_long() -> None:
    core = fleet(slots=2)
    core.submit("a", array=4)
    assert ahead(core) == {"a.2": "a.0", "a.3": "a.1"}
    core.accept("a.0")
    core.accept("a.1")
    core.end("a.1", run_s=0.01)
    core.accept("a.3")
    core.end("a.3", run_s=0.01)
    assert called_back(core) == []
    core.wait(5)
    account = holding(("a.0", core.attempt("a.0"))) + holding(("a.2", core.attempt("a.2")), state=WAITING)
    core.beat("w", account)
    assert called_back(core) == ["a.2"]
    give_back(core, "a.2")
    assert (core.state("a.2"), ahead(core)) == (ASSIGNED, {})


def test_machines_are_not_held_for_a_job_whose_last_task_was_sent_ahead() -> None:
    core = fleet(ahead=1)
    core.fleet.policy, core.fleet.holds.look_at = Scheduling(hold_after_s=0.5), 0.0
    core.register("busy", capabilities(cores=8, memory=128), slots=1)
    core.submit("other", min_memory_gb=100)
    core.accept("other")
    core.cancel("other")
    core.submit("a", array=3)
    core.accept("a.0")
    core.wait(1)
    assert list(core.fleet.holds.on) == ["busy"]
    core.end("a.0", run_s=0.01)
    assert (ahead(core), core.fleet.holds.on) == ({"a.2": "a.1"}, {})


def test_whoever_comes_to_wait_and_is_altered_in_the_same_breath_is_looked_at_as_it_is(
    core: CoreFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "MAX_IDLE_SHAPES", 0)
    core.submit("a", array=3)
    core.turn(
        core.following(entry("m", min_cpu_cores=1, priority=1)), core.following(entry("m", min_cpu_cores=2, priority=1))
    )
    assert called_back(core) == ["a.2", "a.1"]


def test_those_sent_ahead_are_written_down_together_and_seen_all_the_same(core: CoreFleet) -> None:
    core.submit("a", array=10)
    assert [row.index for row in core.ledger.tasks_of("a")] == [0]
    assert [(row.index, row.state, row.worker) for row in placed(core.ledger, "a")] == [
        (index, ASSIGNED, "w") for index in range(5)
    ]
    assert [row.index for row in placed(core.ledger, "a", after=1, limit=2)] == [2, 3]
    told = [line.body["task"] for line in core.ledger.feed(after=0, subject="a") if line.kind == "task"]
    assert told == ["a.0"]


def test_whoever_was_sent_ahead_has_rows_of_its_own_once_something_happens_to_it(core: CoreFleet) -> None:
    core.submit("a", array=3)
    attempt = core.attempt("a.1")
    core.end("a.0", run_s=0.01)
    core.accept("a.1")
    assert together(core) == [2]
    assert (core.task("a.1").state, core.task("a.1").attempt) == (RUNNING, attempt)
    core.end("a.1", run_s=0.01)
    core.end("a.2", run_s=0.01)
    assert together(core) == []
    assert core.ledger.load().ahead == []
    assert [one.state for one in core.ledger.attempts_of("a.2")] == [SUCCEEDED]
    assert core.job("a").state == SUCCEEDED


def test_one_that_waited_before_is_written_down_by_itself_when_it_is_sent_ahead(core: CoreFleet) -> None:
    core.submit("a", array=3)
    give_back(core, "a.2")
    assert ahead(core) == {"a.1": "a.0", "a.2": "a.1"}
    assert together(core) == [1]
    assert core.task("a.2").state == ASSIGNED


def test_a_hub_that_restarts_knows_whom_it_has_sent_ahead(core: CoreFleet) -> None:
    names = [f"a.{number}" for number in range(4)]
    core.submit("a", array=4)
    attempts = [core.attempt(name) for name in names]
    core.restart()
    assert core.states(*names) == [ORPHANED] * 4
    assert [core.attempt(name) for name in names] == attempts
    assert together(core) == []
    assert [one.attempt for one in core.ledger.attempts_of("a.3")] == [attempts[3]]
    waiting = holding(*zip(names[1:], attempts[1:], strict=True), state=WAITING)
    core.register("w", holds=holding((names[0], attempts[0])) + waiting, slots=1, ahead=AHEAD)
    for name in names:
        core.end(name, run_s=0.01)
    assert core.job("a").state == SUCCEEDED


def test_nobody_is_reminded_of_one_that_has_moved_up_and_ended_in_the_same_batch(core: CoreFleet) -> None:
    core.submit("a", array=4)
    before = len(core.fleet.timers.entries(ACCEPTANCE))
    worker = core.fleet.workers["w"]
    ends = [
        TaskEnded(
            worker_id="w", session=worker.session, task_id=name, attempt=core.attempt(name), state=SUCCEEDED, run_s=0.01
        )
        for name in ("a.0", "a.1", "a.2")
    ]
    core.turn(*ends)
    new = core.fleet.timers.entries(ACCEPTANCE)
    assert len(new) == before + 1
    assert core.attempt("a.3") in {attempt for attempt, _ in new}
