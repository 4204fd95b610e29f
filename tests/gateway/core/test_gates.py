"""Gates, through which requests go without being asked for."""

import pytest
from tests.gateway.core.stand import Sizes, Stand

from ostler.gateway.core.effects import CloseGate, OpenGate
from ostler.gateway.core.events import GateDrained, GateUsed, ModelFound
from ostler.gateway.core.fifo import Fifo
from ostler.gateway.core.scheduler import make


@pytest.fixture
def stand() -> Stand:
    made = Stand(Fifo, room=1.0, b={"ttl_s": 30.0}, c={"concurrency": 4})
    assert isinstance(made.machine, Fifo)
    made.machine.has_gates = True
    return made


def test_the_gate_of_a_ready_model_opens_when_nobody_waits(stand: Stand) -> None:
    stand.ask("a")
    stand.loaded("a")
    assert stand.of(OpenGate) == [OpenGate(stand.load("a"))]


def test_a_model_with_a_limit_has_no_gate_for_every_request_must_be_counted(stand: Stand) -> None:
    stand.ask("c")
    stand.loaded("c")
    assert stand.of(OpenGate) == []


def test_whoever_wants_the_room_has_the_gate_closed_and_waits_until_it_is_drained(stand: Stand) -> None:
    stand.make_ready("a")
    waiting = stand.ask("b")
    assert stand.of(CloseGate) == [CloseGate(stand.load("a"))]
    assert len(stand.loads) == 1 and "is serving" in stand.why(waiting)
    stand.turn(GateDrained(stand.load("a")))
    assert stand.loads[-1] == ("b", ["a"])


def test_requests_are_asked_for_one_by_one_while_another_model_waits_and_then_the_gate_opens_again(
    stand: Stand,
) -> None:
    stand.make_ready("a")
    waiting = stand.ask("b")
    request = stand.ask("a")
    assert request in stand.granted
    stand.cancel(waiting)
    assert stand.of(OpenGate) == [], "what went through is not out yet"
    stand.turn(GateDrained(stand.load("a")))
    assert stand.of(OpenGate) == [OpenGate(stand.load("a"))]


def test_a_gate_stays_open_while_others_wait_for_something_else(stand: Stand) -> None:
    stand.capacity.room = 2.0
    stand.make_ready("a")
    stand.ask("b")
    assert stand.of(CloseGate) == []


def test_an_idle_model_is_unloaded_only_after_its_gate_was_closed(stand: Stand) -> None:
    stand.make_ready("b")
    stand.wait(20.0)
    stand.turn(GateUsed(stand.load("b"), arrived=3, in_flight=1))
    stand.wait(500.0)
    assert stand.state("b") == "ready", "one is still there"
    stand.turn(GateUsed(stand.load("b"), arrived=0, in_flight=0))
    stand.wait(30.0)
    assert stand.of(CloseGate) == [CloseGate(stand.load("b"))] and stand.stops() == []
    stand.turn(GateDrained(stand.load("b")))
    assert stand.stops() == [(["b"], "idle")]


def test_a_model_that_is_asked_for_while_its_gate_closes_is_not_unloaded(stand: Stand) -> None:
    stand.make_ready("b")
    stand.wait(30.0)
    request = stand.ask("b")
    stand.turn(GateDrained(stand.load("b")))
    assert stand.state("b") == "ready" and request in stand.granted
    stand.done(request)
    stand.wait(30.0)
    assert stand.of(CloseGate) == [CloseGate(stand.load("b"))], "and its time runs anew"


def test_a_model_yields_to_a_job_when_its_gate_is_drained(stand: Stand) -> None:
    stand.make_ready("a")
    stand.yield_room("a")
    assert stand.of(CloseGate) == [CloseGate(stand.load("a"))] and stand.stops() == []
    assert stand.price("a") is None
    stand.turn(GateDrained(stand.load("a")))
    assert stand.stops() == [(["a"], "yielded")]


def test_what_goes_through_a_gate_counts_for_the_rate_of_arrivals(stand: Stand) -> None:
    stand.make_ready("a")
    before = stand.machine.state.learnt["a"].rate(stand.now)
    stand.turn(GateUsed(stand.load("a"), arrived=50, in_flight=0))
    assert stand.machine.state.learnt["a"].rate(stand.now) > 20 * before


def test_a_drained_gate_of_another_process_changes_nothing(stand: Stand) -> None:
    stand.make_ready("a")
    assert stand.turn(GateDrained(stand.load("a"))) == [], "it was open"
    stand.ask("b")
    assert stand.turn(GateDrained(99)) == []
    stand.turn(GateDrained(stand.load("a")))
    assert stand.loads[-1] == ("b", ["a"])


def test_an_open_gate_through_which_nobody_goes_keeps_no_job_from_asking_for_the_room(stand: Stand) -> None:
    stand.make_ready("a")
    assert stand.instance("a").gate == "open" and stand.price("a") is not None
    stand.turn(GateUsed(stand.load("a"), arrived=1, in_flight=1))
    assert stand.price("a") is None
    stand.turn(GateUsed(stand.load("a"), arrived=0, in_flight=0))
    assert stand.price("a") is not None


def test_each_process_of_a_model_has_a_gate_of_its_own(stand: Stand) -> None:
    stand.capacity.room = 2.0
    stand.reconfigure("abc", a={"max_instances": 2})
    stand.turn(ModelFound("a", load=-1))
    stand.turn(ModelFound("a", load=-2))
    assert {each.gate for each in stand.machine.state.of("a")} == {"open"}
    waiting = stand.ask("b")
    assert sorted(stand.of(CloseGate), key=lambda each: each.load) == [CloseGate(-2), CloseGate(-1)]
    stand.turn(GateDrained(-2))
    assert stand.loads == [("b", ["a"])]
    stand.turn(GateDrained(-1))
    assert stand.of(OpenGate) == [OpenGate(-1)], "nobody wants its room any more"
    stand.loaded("b")
    assert waiting in stand.granted


def test_word_of_a_gate_that_is_shut_does_not_make_a_process_busy(stand: Stand) -> None:
    stand.make_ready("c")
    stand.turn(GateUsed(stand.load("c"), arrived=0, in_flight=3))
    assert stand.price("c") is not None


def test_serial_has_no_gates_for_every_request_has_its_turn() -> None:
    scheduler = make("serial", Stand(Fifo).config, Sizes(1.0), has_gates=True)
    found = scheduler.step(ModelFound("a", load=-1), 0.0)
    assert [effect for effect in found if isinstance(effect, OpenGate)] == []
