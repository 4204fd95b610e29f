"""A model that no machine could hold: nobody waits for it for long, and nobody behind it."""

import pytest
from tests.gateway.core.core_gateway import CoreGateway

from ostler.gateway.core.fifo import Fifo
from ostler.gateway.core.refusals import NOWHERE_S
from ostler.gateway.core.serial import Serial

both = pytest.mark.parametrize("kind", [Serial, Fifo])
Kind = type[Serial] | type[Fifo]


def test_in_serial_it_is_refused_after_a_while_and_the_queue_goes_on() -> None:
    gateway = CoreGateway(Serial, room=1.0, sizes={"b": 2.0})
    gateway.make_ready("a")
    large, behind, large_too = gateway.ask("b"), gateway.ask("a"), gateway.ask("b")
    gateway.wait(NOWHERE_S - 1)
    assert not gateway.refused and behind not in gateway.granted
    late = gateway.ask("b")
    gateway.wait(1.0)
    assert (gateway.refused[large].code, gateway.refused[large].status) == ("no_machine", 503)
    assert gateway.refused.keys() == {large, large_too} and gateway.granted[-1] == behind
    gateway.done(behind)
    gateway.wait(NOWHERE_S)
    assert gateway.refused.keys() == {large, large_too, late}


def test_in_fifo_it_is_refused_after_a_while_and_holds_up_nobody() -> None:
    gateway = CoreGateway(Fifo, room=1.0, sizes={"b": 2.0})
    gateway.make_ready("a")
    large, other = gateway.ask("b"), gateway.ask("a")
    assert gateway.granted[-1] == other
    gateway.wait(1.0)
    late = gateway.ask("b")
    gateway.wait(NOWHERE_S - 1)
    assert gateway.refused.keys() == {large}
    gateway.wait(1.0)
    assert gateway.refused.keys() == {large, late}


@both
def test_why_says_that_no_machine_could_hold_it_and_when_it_is_refused(kind: Kind) -> None:
    gateway = CoreGateway(kind, room=1.0, sizes={"b": 2.0})
    request = gateway.ask("b")
    gateway.wait(10.0)
    assert (
        gateway.why(request)
        == f"No machine that takes work could hold 'b'; if none comes within {NOWHERE_S - 10:.0f} s it is refused."
    )


@both
def test_who_waits_for_jobs_to_leave_waits_on(kind: Kind) -> None:
    gateway = CoreGateway(kind, room=1.0)
    gateway.jobs_take(1.0)
    request = gateway.ask("a")
    gateway.wait(3 * NOWHERE_S)
    gateway.jobs_take(0.0)
    gateway.loaded("a")
    assert gateway.granted == [request]


@both
def test_a_machine_that_comes_back_in_time_serves_those_who_waited(kind: Kind) -> None:
    gateway = CoreGateway(kind, room=0.0)
    request = gateway.ask("a")
    gateway.wait(NOWHERE_S / 2)
    gateway.capacity.room = 1.0
    gateway.jobs_take(0.0)
    gateway.loaded("a")
    assert gateway.granted == [request] and not gateway.refused


@both
def test_the_last_machine_that_goes_ends_waits_that_are_long_enough_already(kind: Kind) -> None:
    gateway = CoreGateway(kind, room=1.0)
    gateway.jobs_take(1.0)
    request = gateway.ask("a")
    gateway.wait(2 * NOWHERE_S)
    assert not gateway.refused
    gateway.capacity.room = 0.0
    gateway.jobs_take(0.0)
    assert gateway.refused.keys() == {request}
