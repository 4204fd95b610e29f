"""A model that no machine could hold: nobody waits for it for long, and nobody behind it."""

import pytest
from tests.gateway.core.stand import Stand

from ostler.gateway.core.fifo import Fifo
from ostler.gateway.core.refusals import NOWHERE_S
from ostler.gateway.core.serial import Serial

both = pytest.mark.parametrize("kind", [Serial, Fifo])
Kind = type[Serial] | type[Fifo]


def test_in_serial_it_is_refused_after_a_while_and_the_queue_goes_on() -> None:
    stand = Stand(Serial, room=1.0, sizes={"b": 2.0})
    stand.make_ready("a")
    large, behind, large_too = stand.ask("b"), stand.ask("a"), stand.ask("b")
    stand.wait(NOWHERE_S - 1)
    assert not stand.refused and behind not in stand.granted
    late = stand.ask("b")
    stand.wait(1.0)
    assert (stand.refused[large].code, stand.refused[large].status) == ("no_machine", 503)
    assert stand.refused.keys() == {large, large_too} and stand.granted[-1] == behind
    stand.done(behind)
    stand.wait(NOWHERE_S)
    assert stand.refused.keys() == {large, large_too, late}


def test_in_fifo_it_is_refused_after_a_while_and_holds_up_nobody() -> None:
    stand = Stand(Fifo, room=1.0, sizes={"b": 2.0})
    stand.make_ready("a")
    large, other = stand.ask("b"), stand.ask("a")
    assert stand.granted[-1] == other
    stand.wait(1.0)
    late = stand.ask("b")
    stand.wait(NOWHERE_S - 1)
    assert stand.refused.keys() == {large}
    stand.wait(1.0)
    assert stand.refused.keys() == {large, late}


@both
def test_why_says_that_no_machine_could_hold_it_and_when_it_is_refused(kind: Kind) -> None:
    stand = Stand(kind, room=1.0, sizes={"b": 2.0})
    request = stand.ask("b")
    stand.wait(10.0)
    assert (
        stand.why(request)
        == f"No machine that takes work could hold 'b'; if none comes within {NOWHERE_S - 10:.0f} s it is refused."
    )


@both
def test_who_waits_for_jobs_to_leave_waits_on(kind: Kind) -> None:
    stand = Stand(kind, room=1.0)
    stand.jobs_take(1.0)
    request = stand.ask("a")
    stand.wait(3 * NOWHERE_S)
    stand.jobs_take(0.0)
    stand.loaded("a")
    assert stand.granted == [request]


@both
def test_a_machine_that_comes_back_in_time_serves_those_who_waited(kind: Kind) -> None:
    stand = Stand(kind, room=0.0)
    request = stand.ask("a")
    stand.wait(NOWHERE_S / 2)
    stand.capacity.room = 1.0
    stand.jobs_take(0.0)
    stand.loaded("a")
    assert stand.granted == [request] and not stand.refused


@both
def test_the_last_machine_that_goes_ends_waits_that_are_long_enough_already(kind: Kind) -> None:
    stand = Stand(kind, room=1.0)
    stand.jobs_take(1.0)
    request = stand.ask("a")
    stand.wait(2 * NOWHERE_S)
    assert not stand.refused
    stand.capacity.room = 0.0
    stand.jobs_take(0.0)
    assert stand.refused.keys() == {request}
