"""The comparison of both accounts, row by row, when a worker registers and when it beats."""

from collections.abc import Iterable

import pytest
from tests.core.yard import Yard, holding

from ostler.core.effects import Acknowledge, AssignTask
from ostler.domain.worker import ActiveTask, Slots

WAYS = ["registration", "heartbeat"]
HERE = ["assigned", "running", "orphaned"]


class Case:
    """One worker `box` with one job, and a way to give the worker's account."""

    def __init__(self, way: str, **spec: object) -> None:
        self.way = way
        self.yard = Yard()
        self.yard.worker("box", devices=[24, 24])
        self.job = self.yard.submit("job", gpu_count=1, **spec)
        self.attempt = self.yard.attempt("job")

    def believe(self, state: str) -> "Case":
        """Bring the hub to believe this of the job."""
        if state in ("running", "orphaned"):
            self.yard.start(self.job)
        if state == "orphaned":
            self.yard.leave("box")
        assert self.yard.state(self.job) == state
        return self

    def tell(self, holds: Iterable[ActiveTask]) -> None:
        if self.way == "registration":
            self.yard.register("box", holds=holds)
        else:
            self.yard.beat("box", holds)

    def mine(self, state: str = "running") -> list[ActiveTask]:
        return holding((self.job, self.attempt), state=state)


def cases(states: Iterable[str]) -> list[tuple[str, str]]:
    """Only a worker that is away can be orphaned, and it comes back by registering."""
    return [(way, state) for way in WAYS for state in states if state != "orphaned" or way == "registration"]


@pytest.mark.parametrize(("way", "state"), cases(HERE))
def test_here_and_active_is_running_with_nothing_restarted_and_no_attempt_spent(way: str, state: str) -> None:
    case = Case(way).believe(state)
    case.tell(case.mine())
    row = case.yard.task(case.job)
    assert (row.state, row.attempt, row.losses) == ("running", case.attempt, 0)
    assert case.yard.of(AssignTask) == [] and case.yard.cancelled() == []
    assert len(case.yard.ledger.attempts_of(case.job)) == 1


@pytest.mark.parametrize("end", ["succeeded", "completed", "failed", "cancelled"])
@pytest.mark.parametrize(("way", "state"), cases(HERE))
def test_here_and_ended_is_not_lost_and_the_result_that_follows_counts_once(way: str, state: str, end: str) -> None:
    case = Case(way).believe(state)
    case.tell(case.mine(state=end))
    assert case.yard.where(case.job) == "box"
    assert case.yard.of(AssignTask) == []
    for _ in range(2):
        case.yard.end(case.job, end, attempt=case.attempt, worker="box")
        assert len(case.yard.of(Acknowledge)) == 1
    row = case.yard.task(case.job)
    assert row.state == {"completed": "succeeded"}.get(end, end)
    assert (row.losses, row.failures) == (0, 1 if end == "failed" else 0)


@pytest.mark.parametrize(("way", "state"), cases(HERE))
def test_a_kept_result_counts_even_where_the_account_did_not_name_it(way: str, state: str) -> None:
    case = Case(way).believe(state)
    if way == "registration":
        case.yard.register("box", holds=case.mine(state="succeeded"))
    case.yard.end(case.job, attempt=case.attempt, worker="box")
    assert case.yard.state(case.job) == "succeeded"


def test_assigned_and_not_there_on_a_heartbeat_is_sent_again_as_it_was() -> None:
    case = Case("heartbeat")
    [first] = case.yard.of(AssignTask)
    for _ in range(3):
        case.tell([])
        assert case.yard.of(AssignTask) == [first]
    assert (case.yard.state(case.job), case.yard.attempt(case.job)) == ("assigned", case.attempt)


def test_assigned_and_not_there_at_registration_is_pending_again_at_no_cost() -> None:
    case = Case("registration")
    case.tell([])
    row = case.yard.task(case.job)
    assert (row.state, row.losses) == ("pending", 0)
    assert case.yard.free("box")[2] == (24 * 1024, 24 * 1024)
    case.yard.accept(case.job, worker="box", attempt=case.attempt)
    assert case.yard.cancelled() == [("box", case.attempt)]


@pytest.mark.parametrize("way", ["registration"])
def test_an_orphan_that_had_not_been_accepted_and_is_not_there_is_pending_at_no_cost(way: str) -> None:
    case = Case(way)
    case.yard.leave("box")
    assert case.yard.state(case.job) == "orphaned"
    case.tell([])
    assert (case.yard.state(case.job), case.yard.task(case.job).losses) == ("pending", 0)


@pytest.mark.parametrize(("way", "state"), cases(["running", "orphaned"]))
def test_running_and_not_there_is_lost_at_once_for_one_attempt(way: str, state: str) -> None:
    case = Case(way).believe(state)
    case.yard.drain("box")
    case.tell([])
    row = case.yard.task(case.job)
    assert (row.state, row.losses) == ("pending", 1)
    assert "box no longer has it" in row.reason
    case.yard.drain("box", False)
    if way == "registration":
        case.yard.beat("box", slots=Slots(batch_total=4))
    assert case.yard.state(case.job) == "assigned"


@pytest.mark.parametrize(("way", "state"), cases(["running", "orphaned"]))
def test_running_and_not_there_fails_where_no_attempt_is_left(way: str, state: str) -> None:
    case = Case(way, max_attempts=0).believe(state)
    case.tell([])
    assert case.yard.state(case.job) == "failed"
    assert "lost 1 times, max_attempts is 0" in case.yard.job(case.job).reason


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("believed", ["elsewhere", "finished", "cancelled"])
def test_active_and_not_authorised_is_cancelled_and_its_room_is_taken_until_it_says_so(way: str, believed: str) -> None:
    case = Case(way).believe("running")
    yard, zombie = case.yard, holding((case.job, case.attempt))
    yard.leave("box")
    yard.wait(31)
    if believed == "cancelled":
        yard.cancel(case.job)
    else:
        yard.worker("other", gpus=1, vram=24)
        yard.start(case.job)
    if believed == "finished":
        yard.end(case.job)
    before = (yard.task(case.job), yard.where(case.job))
    if way == "heartbeat":
        yard.register("box", holds=zombie)
    case.tell(zombie)
    assert yard.cancelled() == [("box", case.attempt)]
    assert yard.free("box")[2] == (0, 24 * 1024)
    yard.end(case.job, "succeeded", worker="box", attempt=case.attempt)
    assert yard.free("box")[2] == (24 * 1024, 24 * 1024)
    assert (yard.task(case.job), yard.where(case.job)) == before


@pytest.mark.parametrize("way", WAYS)
def test_active_and_unknown_is_cancelled_and_takes_a_slot_until_it_says_so(way: str) -> None:
    case = Case(way)
    case.tell([*case.mine(), *holding(("never-heard-of", "x9"))])
    assert case.yard.cancelled() == [("box", "x9")]
    case.yard.beat("box", slots=Slots(batch_total=3))
    assert case.yard.fleet.workers["box"].free_slots("batch") == 1
    case.yard.end("never-heard-of", "cancelled", worker="box", attempt="x9")
    assert case.yard.fleet.workers["box"].free_slots("batch") == 2


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("named", [True, False])
def test_what_one_worker_holds_and_another_reports_is_cancelled_there_and_stays_here(way: str, named: bool) -> None:
    """A machine that was renamed, or whose disk was cloned, brings another's attempts."""
    case = Case(way).believe("running")
    yard, attempt = case.yard, case.attempt if named else ""
    yard.worker("clone", cores=1)
    account = [ActiveTask(task_id=case.job, attempt=attempt)]
    if way == "registration":
        yard.register("clone", holds=account)
    else:
        yard.beat("clone", account)
    assert yard.cancelled() == [("clone", attempt)]
    assert (yard.state(case.job), yard.where(case.job)) == ("running", "box")
    yard.end(case.job, "cancelled", worker="clone", attempt=attempt)
    assert (yard.state(case.job), yard.where(case.job)) == ("running", "box")
    yard.end(case.job, worker="box", attempt=case.attempt)
    assert yard.state(case.job) == "succeeded"


def test_two_workers_that_report_the_same_unknown_task_are_told_each_for_itself() -> None:
    yard = Yard()
    for name in ("a", "b"):
        yard.worker(name)
        yard.beat(name, [ActiveTask(task_id="old")])
        assert yard.cancelled() == [(name, "")]
    for name in ("a", "b"):
        yard.end("old", "cancelled", worker=name, attempt="")
    assert yard.fleet.held == {}


@pytest.mark.parametrize("what", ["active", "result", "end state, then result"])
def test_after_the_grace_and_not_yet_placed_it_is_taken_back_and_no_attempt_is_spent(what: str) -> None:
    case = Case("registration").believe("running")
    yard = case.yard
    yard.leave("box")
    yard.wait(31)
    row = yard.task(case.job)
    assert (row.state, row.losses) == ("pending", 1)
    state = "running" if what == "active" else "succeeded"
    case.tell(case.mine(state=state))
    if what == "active":
        row = yard.task(case.job)
        assert (row.state, row.attempt, row.losses) == ("running", case.attempt, 0)
        assert yard.queue() == []
    yard.end(case.job, attempt=case.attempt, worker="box")
    row = yard.task(case.job)
    assert (row.state, row.losses) == ("succeeded", 0)
    assert len(yard.ledger.attempts_of(case.job)) == 1


def test_after_the_grace_and_not_there_it_stays_pending_and_the_loss_stands() -> None:
    case = Case("registration").believe("running")
    case.yard.leave("box")
    case.yard.wait(31)
    case.tell([])
    assert (case.yard.state(case.job), case.yard.task(case.job).losses) == ("pending", 1)
    assert case.yard.free("box")[2] == (24 * 1024, 24 * 1024)


def test_after_the_grace_a_cancelled_task_is_not_taken_back() -> None:
    case = Case("registration").believe("running")
    yard = case.yard
    yard.leave("box")
    yard.wait(31)
    yard.cancel(case.job)
    case.tell(case.mine())
    assert yard.cancelled() == [("box", case.attempt)]
    assert yard.state(case.job) == "cancelled"


@pytest.mark.parametrize("way", WAYS)
def test_a_requeued_task_whose_old_process_is_gone_is_placed(way: str) -> None:
    case = Case(way).believe("running")
    case.yard.requeue(case.job)
    assert case.yard.state(case.job) == "pending"
    case.tell([])
    if way == "registration":
        case.yard.beat("box", slots=Slots(batch_total=4))
    assert case.yard.state(case.job) == "assigned"
    assert case.yard.task(case.job).losses == 0


@pytest.mark.parametrize("way", WAYS)
def test_a_cancel_that_got_lost_is_said_again(way: str) -> None:
    case = Case(way).believe("running")
    case.yard.cancel(case.job)
    case.tell(case.mine())
    assert case.yard.cancelled() == [("box", case.attempt)]


def test_a_heartbeat_without_an_account_compares_nothing() -> None:
    case = Case("heartbeat").believe("running")
    case.yard.beat("box")
    assert (case.yard.state(case.job), case.yard.of(AssignTask)) == ("running", [])


def test_every_heartbeat_is_acknowledged_with_its_own_time() -> None:
    yard = Yard()
    yard.worker("box")
    yard.beat("box", sent_at="2026-01-01T00:00:00Z")
    [ack] = yard.of(Acknowledge)
    assert (ack.of, ack.sent_at) == ("heartbeat", "2026-01-01T00:00:00Z")


def test_an_assignment_given_back_that_turns_out_to_run_holds_its_devices_again() -> None:
    """Not accepted in time, then seen: the GPU is not free, whatever the hub has decided."""
    yard = Yard()
    yard.worker("box", devices=[24])
    yard.submit("job", gpu_count=1)
    old = yard.attempt("job")
    yard.drain("box")
    yard.wait(31)
    assert yard.state("job") == "pending"
    yard.beat("box", holding(("job", old)))
    assert yard.cancelled() == [("box", old)]
    yard.drain("box", False)
    assert yard.where("job") == ""
    yard.end("job", "cancelled", worker="box", attempt=old)
    assert yard.where("job") == "box"


def test_an_assignment_that_turns_up_after_an_account_without_it_holds_its_devices_again() -> None:
    """The frame was slower than the acceptance may take, and slower than a heartbeat the other way."""
    yard = Yard()
    yard.worker("box", devices=[24])
    yard.submit("job", gpu_count=1)
    old = yard.attempt("job")
    yard.drain("box")
    yard.wait(31)
    yard.beat("box", [])
    yard.beat("box", holding(("job", old)))
    assert yard.cancelled() == [("box", old)]
    yard.drain("box", False)
    assert yard.where("job") == "", "two processes on one GPU"
    yard.end("job", "cancelled", worker="box", attempt=old)
    assert yard.where("job") == "box"


def test_the_account_of_a_plain_worker_names_tasks_alone() -> None:
    case = Case("heartbeat")
    case.tell([ActiveTask(task_id=case.job)])
    assert case.yard.state(case.job) == "running"
    case.yard.leave("box")
    case.yard.register("box", holds=[ActiveTask(task_id=case.job)])
    assert (case.yard.state(case.job), case.yard.task(case.job).losses) == ("running", 0)
