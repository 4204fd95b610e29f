"""`request_limit`: how many requests a model may have, served and waiting ones together."""

import pytest
from tests.gateway.core.core_gateway import CoreGateway

from ostler.gateway.core.effects import CloseGate, OpenGate
from ostler.gateway.core.events import GateDrained, GateUsed, RequestArrived
from ostler.gateway.core.fifo import Fifo
from ostler.gateway.core.serial import Serial

CODE = "request_limit_reached"


@pytest.mark.parametrize("kind", [Serial, Fifo])
def test_over_the_limit_a_request_is_refused_at_once_with_a_time_to_come_back(kind: type[Serial] | type[Fifo]) -> None:
    gateway = CoreGateway(kind, a={"request_limit": 2, "load_s": 12.0})
    gateway.ask("a", "a")
    gateway.now = 5.0
    refused = gateway.refused[gateway.ask("a")]
    assert (refused.code, refused.status, refused.retry_after_s) == (CODE, 429, 7.0)
    assert len(gateway.heard) == 1, "the refusal is the only word it hears"
    assert gateway.code(gateway.ask("b")) == "", "the limit is of one model"


def test_a_request_that_is_served_counts_until_it_ends() -> None:
    gateway = CoreGateway(Fifo, a={"request_limit": 2})
    gateway.make_ready("a")
    first, second = gateway.ask("a"), gateway.ask("a")
    assert {first, second} <= set(gateway.granted)
    assert gateway.code(gateway.ask("a")) == CODE
    gateway.done(first)
    third = gateway.ask("a")
    assert third in gateway.granted
    assert gateway.code(gateway.ask("a")) == CODE
    gateway.gone(second)
    assert gateway.ask("a") in gateway.granted


def test_served_and_waiting_requests_count_together() -> None:
    gateway = CoreGateway(Fifo, a={"request_limit": 2, "concurrency": 1})
    gateway.make_ready("a")
    serving, waiting = gateway.ask("a"), gateway.ask("a")
    assert serving in gateway.granted and waiting not in gateway.granted
    assert gateway.code(gateway.ask("a")) == CODE
    gateway.cancel(waiting)
    assert gateway.code(gateway.ask("a")) == ""


def test_refused_requests_and_those_of_a_failed_load_leave_their_places() -> None:
    gateway = CoreGateway(Fifo, a={"request_limit": 1})
    first = gateway.ask("a")
    assert [gateway.code(gateway.ask("a")) for _ in range(3)] == [CODE] * 3
    gateway.loaded("a", "exit code 1")
    assert gateway.code(first) == "model_load_failed"
    assert gateway.code(gateway.ask("a")) == ""
    gateway.unload("a")
    assert gateway.code(gateway.ask("a")) == ""


def test_a_request_whose_process_died_keeps_its_place() -> None:
    gateway = CoreGateway(Fifo, a={"request_limit": 1})
    gateway.make_ready("a")
    request = gateway.ask("a")
    gateway.stopped("a", "killed by signal 9")
    assert gateway.code(gateway.ask("a")) == CODE
    gateway.failed(request)
    gateway.loaded("a")
    assert gateway.granted[-1] == request


def test_a_model_with_a_limit_has_no_gate_for_every_request_must_be_counted() -> None:
    gateway = CoreGateway(Fifo, a={"request_limit": 2})
    gateway.machine.has_gates = True  # type: ignore[attr-defined]
    gateway.make_ready("a", "b")
    assert gateway.machine.state.best("a").gate == "shut"  # type: ignore[union-attr]
    assert gateway.machine.state.best("b").gate == "open"  # type: ignore[union-attr]


def test_a_limit_that_is_added_closes_the_gate_and_counts_those_that_passed_it() -> None:
    gateway = CoreGateway(Fifo)
    gateway.machine.has_gates = True  # type: ignore[attr-defined]
    gateway.make_ready("a")
    load = gateway.load("a")
    gateway.turn(GateUsed(load, 2, 2))
    gateway.reconfigure("abcde", a={"request_limit": 2})
    assert gateway.of(CloseGate) == [CloseGate(load)]
    assert gateway.code(gateway.ask("a")) == CODE
    gateway.turn(RequestArrived(99, "a", again=True))
    assert 99 in gateway.granted, "it had been let in before"
    gateway.done(99)
    gateway.turn(GateDrained(load))
    assert gateway.code(gateway.ask("a")) == ""
    assert gateway.of(OpenGate) == []


def test_a_limit_that_is_lowered_lets_those_in_who_are_there() -> None:
    gateway = CoreGateway(Fifo, a={"request_limit": 4})
    requests = [gateway.ask("a") for _ in range(4)]
    gateway.reconfigure("abcde", a={"request_limit": 1})
    gateway.loaded("a")
    for request in requests:
        assert gateway.code(gateway.ask("a")) == CODE
        assert request in gateway.granted
        gateway.done(request)
    assert gateway.ask("a") in gateway.granted
