"""Gates, through which requests go without being asked for."""

import pytest
from tests.gateway.core.core_gateway import CoreGateway, Sizes

from ostler.gateway.core.effects import CloseGate, OpenGate, WatchGate
from ostler.gateway.core.events import GateDrained, GateUsed, ModelFound
from ostler.gateway.core.fifo import Fifo
from ostler.gateway.core.scheduler import make


@pytest.fixture
def gateway() -> CoreGateway:
    made = CoreGateway(Fifo, room=1.0, b={"ttl_s": 30.0}, c={"concurrency": 4})
    assert isinstance(made.machine, Fifo)
    made.machine.has_gates = True
    return made


def test_the_gate_of_a_ready_model_opens_when_nobody_waits(gateway: CoreGateway) -> None:
    gateway.ask("a")
    gateway.loaded("a")
    assert gateway.of(OpenGate) == [OpenGate(gateway.load("a"))]


def test_a_model_with_a_limit_has_no_gate_for_every_request_must_be_counted(gateway: CoreGateway) -> None:
    gateway.ask("c")
    gateway.loaded("c")
    assert gateway.of(OpenGate) == []


def test_whoever_wants_the_room_has_the_gate_closed_and_waits_until_it_is_drained(gateway: CoreGateway) -> None:
    gateway.make_ready("a")
    waiting = gateway.ask("b")
    assert gateway.of(CloseGate) == [CloseGate(gateway.load("a"))]
    assert len(gateway.loads) == 1 and "about to make way" in gateway.why(waiting)
    gateway.turn(GateDrained(gateway.load("a")))
    assert gateway.loads[-1] == ("b", ["a"])


def test_requests_are_asked_for_one_by_one_while_another_model_waits_and_then_the_gate_opens_again(
    gateway: CoreGateway,
) -> None:
    gateway.make_ready("a")
    waiting = gateway.ask("b")
    request = gateway.ask("a")
    assert request in gateway.granted
    gateway.cancel(waiting)
    assert gateway.of(OpenGate) == [], "what went through is not out yet"
    gateway.turn(GateDrained(gateway.load("a")))
    assert gateway.of(OpenGate) == [OpenGate(gateway.load("a"))]


def test_a_gate_stays_open_while_others_wait_for_something_else(gateway: CoreGateway) -> None:
    gateway.capacity.room = 2.0
    gateway.make_ready("a")
    gateway.ask("b")
    assert gateway.of(CloseGate) == []


def test_only_the_gate_of_the_victim_is_closed(gateway: CoreGateway) -> None:
    gateway.capacity.room = 2.0
    gateway.reconfigure("abd")
    gateway.make_ready("a", "b")
    gateway.wait(60.0)
    gateway.turn(GateUsed(gateway.load("a"), arrived=1, in_flight=0))
    gateway.ask("d")
    assert gateway.of(CloseGate) == [CloseGate(gateway.load("b"))], "b was used less"
    gateway.turn(GateDrained(gateway.load("b")))
    assert gateway.loads[-1] == ("d", ["b"])


def test_a_request_that_came_before_the_gate_closed_keeps_its_model(gateway: CoreGateway) -> None:
    gateway.capacity.room = 2.0
    gateway.reconfigure("abd")
    gateway.make_ready("a", "b")
    gateway.wait(60.0)
    gateway.turn(GateUsed(gateway.load("a"), arrived=1, in_flight=0))
    gateway.ask("d")
    gateway.turn(GateUsed(gateway.load("b"), arrived=1, in_flight=1))
    assert gateway.of(CloseGate) == [CloseGate(gateway.load("a"))], "another is chosen"
    gateway.turn(GateDrained(gateway.load("a")))
    assert gateway.loads[-1] == ("d", ["a"])
    gateway.turn(GateDrained(gateway.load("b")))
    assert gateway.of(OpenGate) == [OpenGate(gateway.load("b"))], "its room is not needed"


def test_a_gate_whose_room_another_model_waits_for_reports_when_it_is_idle(gateway: CoreGateway) -> None:
    gateway.make_ready("a")
    gateway.turn(GateUsed(gateway.load("a"), arrived=1, in_flight=1))
    gateway.ask("b")
    assert gateway.of(WatchGate) == [WatchGate(gateway.load("a"), True)] and not gateway.of(CloseGate)
    gateway.turn(GateUsed(gateway.load("a"), arrived=0, in_flight=0))
    assert gateway.of(CloseGate) == [CloseGate(gateway.load("a"))]


def test_an_idle_model_is_unloaded_only_after_its_gate_was_closed(gateway: CoreGateway) -> None:
    gateway.make_ready("b")
    gateway.wait(20.0)
    gateway.turn(GateUsed(gateway.load("b"), arrived=3, in_flight=1))
    gateway.wait(500.0)
    assert gateway.state("b") == "ready", "one is still there"
    gateway.turn(GateUsed(gateway.load("b"), arrived=0, in_flight=0))
    gateway.wait(30.0)
    assert gateway.of(CloseGate) == [CloseGate(gateway.load("b"))] and gateway.stops() == []
    gateway.turn(GateDrained(gateway.load("b")))
    assert gateway.stops() == [(["b"], "idle")]


def test_a_model_that_is_asked_for_while_its_gate_closes_is_not_unloaded(gateway: CoreGateway) -> None:
    gateway.make_ready("b")
    gateway.wait(30.0)
    request = gateway.ask("b")
    gateway.turn(GateDrained(gateway.load("b")))
    assert gateway.state("b") == "ready" and request in gateway.granted
    gateway.done(request)
    gateway.wait(30.0)
    assert gateway.of(CloseGate) == [CloseGate(gateway.load("b"))], "and its time runs anew"


def test_a_model_yields_to_a_job_when_its_gate_is_drained(gateway: CoreGateway) -> None:
    gateway.make_ready("a")
    gateway.yield_room("a")
    assert gateway.of(CloseGate) == [CloseGate(gateway.load("a"))] and gateway.stops() == []
    assert gateway.price("a") is None
    gateway.turn(GateDrained(gateway.load("a")))
    assert gateway.stops() == [(["a"], "yielded")]


def test_what_goes_through_a_gate_counts_for_the_rate_of_arrivals(gateway: CoreGateway) -> None:
    gateway.make_ready("a")
    before = gateway.machine.state.learnt["a"].rate(gateway.now)
    gateway.turn(GateUsed(gateway.load("a"), arrived=50, in_flight=0))
    assert gateway.machine.state.learnt["a"].rate(gateway.now) > 20 * before


def test_a_drained_gate_of_another_process_changes_nothing(gateway: CoreGateway) -> None:
    gateway.make_ready("a")
    assert gateway.turn(GateDrained(gateway.load("a"))) == [], "it was open"
    gateway.ask("b")
    assert gateway.turn(GateDrained(99)) == []
    gateway.turn(GateDrained(gateway.load("a")))
    assert gateway.loads[-1] == ("b", ["a"])


def test_an_open_gate_through_which_nobody_goes_keeps_no_job_from_asking_for_the_room(gateway: CoreGateway) -> None:
    gateway.make_ready("a")
    assert gateway.instance("a").gate == "open" and gateway.price("a") is not None
    gateway.turn(GateUsed(gateway.load("a"), arrived=1, in_flight=1))
    assert gateway.price("a") is None
    gateway.turn(GateUsed(gateway.load("a"), arrived=0, in_flight=0))
    assert gateway.price("a") is not None


def test_each_process_of_a_model_has_a_gate_of_its_own(gateway: CoreGateway) -> None:
    gateway.capacity.room = 2.0
    gateway.reconfigure("abc", a={"max_instances": 2})
    gateway.turn(ModelFound("a", load=-1))
    gateway.turn(ModelFound("a", load=-2))
    assert {each.gate for each in gateway.machine.state.of("a")} == {"open"}
    waiting = gateway.ask("b")
    assert gateway.of(CloseGate) == [CloseGate(-2)], "the other one stays open"
    gateway.turn(GateDrained(-2))
    assert gateway.loads == [("b", ["a"])]
    assert gateway.machine.state.present[-1].gate == "open"
    gateway.loaded("b")
    assert waiting in gateway.granted


def test_word_of_a_gate_that_is_shut_does_not_make_a_process_busy(gateway: CoreGateway) -> None:
    gateway.make_ready("c")
    gateway.turn(GateUsed(gateway.load("c"), arrived=0, in_flight=3))
    assert gateway.price("c") is not None


def test_serial_has_no_gates_for_every_request_has_its_turn() -> None:
    scheduler = make("serial", CoreGateway(Fifo).config, Sizes(1.0), has_gates=True)
    found = scheduler.step(ModelFound("a", load=-1), 0.0)
    assert [effect for effect in found if isinstance(effect, OpenGate)] == []
