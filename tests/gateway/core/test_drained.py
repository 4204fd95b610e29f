"""Processes whose worker leaves, is lost, or cannot be reached for a while."""

import pytest
from tests.gateway.core.core_gateway import CoreGateway

from ostler.gateway.core.effects import CloseGate, OpenGate, StartLoad
from ostler.gateway.core.events import GateDrained, LoadDone, PlaceChanged, Stopped
from ostler.gateway.core.fifo import Fifo
from ostler.gateway.core.serial import Serial
from ostler.gateway.core.state import AWAY, CLOSED, HERE, MISSED


@pytest.fixture
def gateway() -> CoreGateway:
    return CoreGateway(Fifo, "abc")


def move(gateway: CoreGateway, model: str, home: str) -> None:
    gateway.turn(PlaceChanged(gateway.load(model), home))


def test_what_is_served_on_a_leaving_worker_ends_while_another_process_is_loaded(gateway: CoreGateway) -> None:
    served = gateway.ask("a")
    gateway.loaded("a")
    move(gateway, "a", CLOSED)
    assert gateway.stops() == [] and gateway.of(StartLoad) != []
    waiting = gateway.ask("a")
    gateway.loaded("a")
    assert gateway.grants() == [waiting]
    gateway.done(served)
    assert gateway.stops() == [(["a"], "drained")]


def test_the_gate_of_a_leaving_process_is_closed_and_the_process_stops_when_it_is_drained() -> None:
    gateway = CoreGateway(Fifo, "a", room=1.0)
    assert isinstance(gateway.machine, Fifo)
    gateway.machine.has_gates = True
    gateway.make_ready("a")
    move(gateway, "a", CLOSED)
    assert gateway.of(CloseGate) == [CloseGate(gateway.load("a"))] and gateway.stops() == []
    gateway.turn(GateDrained(gateway.load("a")))
    assert gateway.stops() == [(["a"], "drained")]


@pytest.mark.parametrize("kind", [Serial, Fifo])
def test_a_model_that_left_with_its_worker_is_loaded_again_when_there_is_free_room(
    kind: type[Serial] | type[Fifo],
) -> None:
    gateway = CoreGateway(kind, "ab", room=1.0)
    gateway.make_ready("a")
    gateway.jobs_take(1.0)
    move(gateway, "a", CLOSED)
    gateway.stopped("a")
    assert gateway.state("a") == ""
    gateway.jobs_take(0.0)
    assert gateway.loads[-1] == ("a", []) and gateway.state("a") == "loading"


def test_a_model_that_was_lost_with_its_worker_is_loaded_again_and_not_blamed(gateway: CoreGateway) -> None:
    gateway.make_ready("a")
    for _ in range(3):
        gateway.turn(Stopped(gateway.load("a"), lost=True))
        gateway.loaded("a")
    assert gateway.machine.state.learnt["a"].failures == 0 and len(gateway.loads) == 4


def test_a_model_that_was_leaving_for_another_reason_is_not_wanted_again(gateway: CoreGateway) -> None:
    served = gateway.ask("a")
    gateway.loaded("a")
    gateway.yield_room("a")
    move(gateway, "a", CLOSED)
    gateway.done(served)
    gateway.stopped("a")
    assert len(gateway.loads) == 1


def test_who_waits_for_a_load_on_a_leaving_worker_waits_for_one_elsewhere(gateway: CoreGateway) -> None:
    waiting = gateway.ask("a")
    move(gateway, "a", CLOSED)
    assert gateway.stops() == [(["a"], "drained")] and [model for model, _ in gateway.loads] == ["a", "a"]
    gateway.loaded("a")
    assert gateway.grants() == [waiting]


def test_a_worker_that_an_operator_opens_again_keeps_its_process(gateway: CoreGateway) -> None:
    gateway.capacity.room = 1.0
    served = gateway.ask("a")
    gateway.loaded("a")
    move(gateway, "a", CLOSED)
    waiting = gateway.ask("a")
    move(gateway, "a", HERE)
    assert gateway.grants() == [waiting]
    gateway.done(served, waiting)
    assert gateway.stops() == [] and len(gateway.loads) == 1


def test_a_process_whose_place_was_taken_meanwhile_leaves_when_its_worker_is_opened_again(gateway: CoreGateway) -> None:
    served = gateway.ask("a")
    gateway.loaded("a")
    move(gateway, "a", CLOSED)
    gateway.loaded("a")
    move(gateway, "a", HERE)
    assert gateway.machine.state.present[1].leaving == "surplus"
    gateway.done(served)
    assert gateway.stops() == [(["a"], "surplus")]


def test_a_process_that_cannot_be_reached_takes_no_requests_until_it_can(gateway: CoreGateway) -> None:
    assert isinstance(gateway.machine, Fifo)
    gateway.machine.has_gates = True
    gateway.make_ready("a")
    move(gateway, "a", AWAY)
    assert gateway.of(CloseGate) != []
    waiting = gateway.ask("a")
    assert "cannot be reached" in gateway.why(waiting)
    gateway.turn(GateDrained(gateway.load("a")))
    move(gateway, "a", HERE)
    assert gateway.grants() == [waiting] and len(gateway.loads) == 1 and gateway.of(OpenGate) != []


@pytest.mark.parametrize("kind", [Serial, Fifo])
def test_a_worker_that_stays_away_for_as_long_as_a_load_takes_is_not_waited_for(
    kind: type[Serial] | type[Fifo],
) -> None:
    gateway = CoreGateway(kind, "ab", room=2.0)
    gateway.make_ready("a")
    move(gateway, "a", AWAY)
    waiting = gateway.ask("a")
    gateway.wait(9.0)
    assert len(gateway.loads) == 1
    gateway.wait(2.0)
    assert len(gateway.loads) == 2 and gateway.machine.state.present[1].ended_by != ""
    gateway.turn(LoadDone(gateway.load("a", "loading")))
    assert gateway.grants() == [waiting]


def test_a_process_that_is_missed_serves_again_if_its_place_is_free(gateway: CoreGateway) -> None:
    gateway.make_ready("a")
    move(gateway, "a", AWAY)
    gateway.wait(60.0)
    assert gateway.instance("a").home == MISSED and len(gateway.loads) == 1
    move(gateway, "a", HERE)
    request = gateway.ask("a")
    assert gateway.grants() == [request]


def test_what_may_still_be_served_where_nobody_can_be_reached_is_not_given_up(gateway: CoreGateway) -> None:
    served = gateway.ask("a")
    gateway.wait(5.0)
    gateway.loaded("a")
    move(gateway, "a", AWAY)
    gateway.ask("a")
    gateway.wait(60.0)
    assert gateway.instance("a").home == AWAY and len(gateway.loads) == 1
    gateway.done(served)
    assert len(gateway.loads) == 2
