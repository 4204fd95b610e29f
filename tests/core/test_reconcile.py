"""The comparison of both accounts, row by row, when a worker registers and when it beats."""

from collections.abc import Iterable

import pytest
from tests.core.core_fleet import CoreFleet, holding

from ostler.core.effects import Acknowledge, AssignTask
from ostler.domain.worker import ActiveTask, Slots

WAYS = ["registration", "heartbeat"]
HERE = ["assigned", "running", "orphaned"]


class Case:
    """One worker `box` with one job, and a way to give the worker's account."""

    def __init__(self, way: str, **spec: object) -> None:
        self.way = way
        self.core = CoreFleet()
        self.core.worker("box", devices=[24, 24])
        self.job = self.core.submit("job", gpu_count=1, **spec)
        self.attempt = self.core.attempt("job")

    def believe(self, state: str) -> "Case":
        """Bring the hub to believe this of the job."""
        if state in ("running", "orphaned"):
            self.core.start(self.job)
        if state == "orphaned":
            self.core.leave("box")
        assert self.core.state(self.job) == state
        return self

    def tell(self, holds: Iterable[ActiveTask]) -> None:
        if self.way == "registration":
            self.core.register("box", holds=holds)
        else:
            self.core.beat("box", holds)

    def mine(self, state: str = "running") -> list[ActiveTask]:
        return holding((self.job, self.attempt), state=state)


def cases(states: Iterable[str]) -> list[tuple[str, str]]:
    """Only a worker that is away can be orphaned, and it comes back by registering."""
    return [(way, state) for way in WAYS for state in states if state != "orphaned" or way == "registration"]


@pytest.mark.parametrize(("way", "state"), cases(HERE))
def test_here_and_active_is_running_with_nothing_restarted_and_no_attempt_spent(way: str, state: str) -> None:
    case = Case(way).believe(state)
    case.tell(case.mine())
    row = case.core.task(case.job)
    assert (row.state, row.attempt, row.losses) == ("running", case.attempt, 0)
    assert case.core.of(AssignTask) == [] and case.core.cancelled() == []
    assert len(case.core.ledger.attempts_of(case.job)) == 1


@pytest.mark.parametrize("end", ["succeeded", "completed", "failed", "cancelled"])
@pytest.mark.parametrize(("way", "state"), cases(HERE))
def test_here_and_ended_is_not_lost_and_the_result_that_follows_counts_once(way: str, state: str, end: str) -> None:
    case = Case(way).believe(state)
    case.tell(case.mine(state=end))
    assert case.core.where(case.job) == "box"
    assert case.core.of(AssignTask) == []
    for _ in range(2):
        case.core.end(case.job, end, attempt=case.attempt, worker="box")
        assert len(case.core.of(Acknowledge)) == 1
    row = case.core.task(case.job)
    assert row.state == {"completed": "succeeded"}.get(end, end)
    assert (row.losses, row.failures) == (0, 1 if end == "failed" else 0)


@pytest.mark.parametrize(("way", "state"), cases(HERE))
def test_a_kept_result_counts_even_where_the_account_did_not_name_it(way: str, state: str) -> None:
    case = Case(way).believe(state)
    if way == "registration":
        case.core.register("box", holds=case.mine(state="succeeded"))
    case.core.end(case.job, attempt=case.attempt, worker="box")
    assert case.core.state(case.job) == "succeeded"


def test_assigned_and_not_there_on_a_heartbeat_is_sent_again_as_it_was() -> None:
    case = Case("heartbeat")
    [first] = case.core.of(AssignTask)
    for _ in range(3):
        case.tell([])
        assert case.core.of(AssignTask) == [first]
    assert (case.core.state(case.job), case.core.attempt(case.job)) == ("assigned", case.attempt)


def test_assigned_and_not_there_at_registration_is_pending_again_at_no_cost() -> None:
    case = Case("registration")
    case.tell([])
    row = case.core.task(case.job)
    assert (row.state, row.losses) == ("pending", 0)
    assert case.core.free("box")[2] == (24 * 1024, 24 * 1024)
    case.core.accept(case.job, worker="box", attempt=case.attempt)
    assert case.core.cancelled() == [("box", case.attempt)]


@pytest.mark.parametrize("way", ["registration"])
def test_an_orphan_that_had_not_been_accepted_and_is_not_there_is_pending_at_no_cost(way: str) -> None:
    case = Case(way)
    case.core.leave("box")
    assert case.core.state(case.job) == "orphaned"
    case.tell([])
    assert (case.core.state(case.job), case.core.task(case.job).losses) == ("pending", 0)


@pytest.mark.parametrize(("way", "state"), cases(["running", "orphaned"]))
def test_running_and_not_there_is_lost_at_once_for_one_attempt(way: str, state: str) -> None:
    case = Case(way).believe(state)
    case.core.drain("box")
    case.tell([])
    row = case.core.task(case.job)
    assert (row.state, row.losses) == ("pending", 1)
    assert "box no longer has it" in row.reason
    case.core.drain("box", False)
    if way == "registration":
        case.core.beat("box", slots=Slots(batch_total=4))
    assert case.core.state(case.job) == "assigned"


@pytest.mark.parametrize(("way", "state"), cases(["running", "orphaned"]))
def test_running_and_not_there_fails_where_no_attempt_is_left(way: str, state: str) -> None:
    case = Case(way, max_attempts=0).believe(state)
    case.tell([])
    assert case.core.state(case.job) == "failed"
    assert "lost 1 times, max_attempts is 0" in case.core.job(case.job).reason


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("believed", ["elsewhere", "finished", "cancelled"])
def test_active_and_not_authorised_is_cancelled_and_its_room_is_taken_until_it_says_so(way: str, believed: str) -> None:
    case = Case(way).believe("running")
    core, zombie = case.core, holding((case.job, case.attempt))
    core.leave("box")
    core.wait(31)
    if believed == "cancelled":
        core.cancel(case.job)
    else:
        core.worker("other", gpus=1, vram=24)
        core.start(case.job)
    if believed == "finished":
        core.end(case.job)
    before = (core.task(case.job), core.where(case.job))
    if way == "heartbeat":
        core.register("box", holds=zombie)
    case.tell(zombie)
    assert core.cancelled() == [("box", case.attempt)]
    assert core.free("box")[2] == (0, 24 * 1024)
    core.end(case.job, "succeeded", worker="box", attempt=case.attempt)
    assert core.free("box")[2] == (24 * 1024, 24 * 1024)
    assert (core.task(case.job), core.where(case.job)) == before


@pytest.mark.parametrize("way", WAYS)
def test_active_and_unknown_is_cancelled_and_takes_a_slot_until_it_says_so(way: str) -> None:
    case = Case(way)
    case.tell([*case.mine(), *holding(("never-heard-of", "x9"))])
    assert case.core.cancelled() == [("box", "x9")]
    case.core.beat("box", slots=Slots(batch_total=3))
    assert case.core.fleet.workers["box"].free_slots("batch") == 1
    case.core.end("never-heard-of", "cancelled", worker="box", attempt="x9")
    assert case.core.fleet.workers["box"].free_slots("batch") == 2


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("named", [True, False])
def test_what_one_worker_holds_and_another_reports_is_cancelled_there_and_stays_here(way: str, named: bool) -> None:
    """A machine that was renamed, or whose disk was cloned, brings another's attempts."""
    case = Case(way).believe("running")
    core, attempt = case.core, case.attempt if named else ""
    core.worker("clone", cores=1)
    account = [ActiveTask(task_id=case.job, attempt=attempt)]
    if way == "registration":
        core.register("clone", holds=account)
    else:
        core.beat("clone", account)
    assert core.cancelled() == [("clone", attempt)]
    assert (core.state(case.job), core.where(case.job)) == ("running", "box")
    core.end(case.job, "cancelled", worker="clone", attempt=attempt)
    assert (core.state(case.job), core.where(case.job)) == ("running", "box")
    core.end(case.job, worker="box", attempt=case.attempt)
    assert core.state(case.job) == "succeeded"


def test_two_workers_that_report_the_same_unknown_task_are_told_each_for_itself() -> None:
    core = CoreFleet()
    for name in ("a", "b"):
        core.worker(name)
        core.beat(name, [ActiveTask(task_id="old")])
        assert core.cancelled() == [(name, "")]
    for name in ("a", "b"):
        core.end("old", "cancelled", worker=name, attempt="")
    assert core.fleet.held == {}


@pytest.mark.parametrize("what", ["active", "result", "end state, then result"])
def test_after_the_grace_and_not_yet_placed_it_is_taken_back_and_no_attempt_is_spent(what: str) -> None:
    case = Case("registration").believe("running")
    core = case.core
    core.leave("box")
    core.wait(31)
    row = core.task(case.job)
    assert (row.state, row.losses) == ("pending", 1)
    state = "running" if what == "active" else "succeeded"
    case.tell(case.mine(state=state))
    if what == "active":
        row = core.task(case.job)
        assert (row.state, row.attempt, row.losses) == ("running", case.attempt, 0)
        assert core.queue() == []
    core.end(case.job, attempt=case.attempt, worker="box")
    row = core.task(case.job)
    assert (row.state, row.losses) == ("succeeded", 0)
    assert len(core.ledger.attempts_of(case.job)) == 1


def test_after_the_grace_and_not_there_it_stays_pending_and_the_loss_stands() -> None:
    case = Case("registration").believe("running")
    case.core.leave("box")
    case.core.wait(31)
    case.tell([])
    assert (case.core.state(case.job), case.core.task(case.job).losses) == ("pending", 1)
    assert case.core.free("box")[2] == (24 * 1024, 24 * 1024)


def test_after_the_grace_a_cancelled_task_is_not_taken_back() -> None:
    case = Case("registration").believe("running")
    core = case.core
    core.leave("box")
    core.wait(31)
    core.cancel(case.job)
    case.tell(case.mine())
    assert core.cancelled() == [("box", case.attempt)]
    assert core.state(case.job) == "cancelled"


@pytest.mark.parametrize("way", WAYS)
def test_a_requeued_task_whose_old_process_is_gone_is_placed(way: str) -> None:
    case = Case(way).believe("running")
    case.core.requeue(case.job)
    assert case.core.state(case.job) == "pending"
    case.tell([])
    if way == "registration":
        case.core.beat("box", slots=Slots(batch_total=4))
    assert case.core.state(case.job) == "assigned"
    assert case.core.task(case.job).losses == 0


@pytest.mark.parametrize("way", WAYS)
def test_a_cancel_that_got_lost_is_said_again(way: str) -> None:
    case = Case(way).believe("running")
    case.core.cancel(case.job)
    case.tell(case.mine())
    assert case.core.cancelled() == [("box", case.attempt)]


def test_a_heartbeat_without_an_account_compares_nothing() -> None:
    case = Case("heartbeat").believe("running")
    case.core.beat("box")
    assert (case.core.state(case.job), case.core.of(AssignTask)) == ("running", [])


def test_every_heartbeat_is_acknowledged_with_its_own_time() -> None:
    core = CoreFleet()
    core.worker("box")
    core.beat("box", sent_at="2026-01-01T00:00:00Z")
    [ack] = core.of(Acknowledge)
    assert (ack.of, ack.sent_at) == ("heartbeat", "2026-01-01T00:00:00Z")


def test_an_assignment_given_back_that_turns_out_to_run_holds_its_devices_again() -> None:
    """Not accepted in time, then seen: the GPU is not free, whatever the hub has decided."""
    core = CoreFleet()
    core.worker("box", devices=[24])
    core.submit("job", gpu_count=1)
    old = core.attempt("job")
    core.drain("box")
    core.wait(31)
    assert core.state("job") == "pending"
    core.beat("box", holding(("job", old)))
    assert core.cancelled() == [("box", old)]
    core.drain("box", False)
    assert core.where("job") == ""
    core.end("job", "cancelled", worker="box", attempt=old)
    assert core.where("job") == "box"


def test_an_assignment_that_turns_up_after_an_account_without_it_holds_its_devices_again() -> None:
    """The frame was slower than the acceptance may take, and slower than a heartbeat the other way."""
    core = CoreFleet()
    core.worker("box", devices=[24])
    core.submit("job", gpu_count=1)
    old = core.attempt("job")
    core.drain("box")
    core.wait(31)
    core.beat("box", [])
    core.beat("box", holding(("job", old)))
    assert core.cancelled() == [("box", old)]
    core.drain("box", False)
    assert core.where("job") == "", "two processes on one GPU"
    core.end("job", "cancelled", worker="box", attempt=old)
    assert core.where("job") == "box"


def test_the_account_of_a_plain_worker_names_tasks_alone() -> None:
    case = Case("heartbeat")
    case.tell([ActiveTask(task_id=case.job)])
    assert case.core.state(case.job) == "running"
    case.core.leave("box")
    case.core.register("box", holds=[ActiveTask(task_id=case.job)])
    assert (case.core.state(case.job), case.core.task(case.job).losses) == ("running", 0)
