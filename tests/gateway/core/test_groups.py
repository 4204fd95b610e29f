"""Groups are constraints beside the ledger."""

from typing import Any

import pytest
from tests.gateway.core.core_gateway import CoreGateway

from ostler.gateway.core.fifo import Fifo
from ostler.gateway.core.models import Group


def group(members: str, **more: Any) -> Group:
    return Group(members=tuple(members), **more)


def test_one_member_of_a_swapping_group_is_loaded_at_a_time() -> None:
    gateway = CoreGateway(Fifo, groups=[group("ab")])
    gateway.make_ready("a")
    gateway.ask("b")
    assert gateway.loads[-1] == ("b", ["a"])


def test_members_of_a_group_that_does_not_swap_stay_together() -> None:
    gateway = CoreGateway(Fifo, groups=[group("ab", swap=False)])
    gateway.make_ready("a")
    gateway.ask("b")
    assert gateway.loads[-1] == ("b", [])


def test_the_load_of_an_exclusive_group_evicts_other_groups() -> None:
    gateway = CoreGateway(Fifo, groups=[group("ab", swap=False, exclusive=False), group("cd")])
    gateway.make_ready("a", "b")
    gateway.ask("c")
    assert gateway.loads[-1] == ("c", ["a", "b"])


def test_a_group_that_is_not_exclusive_lets_others_be_even_an_exclusive_one() -> None:
    gateway = CoreGateway(Fifo, groups=[group("ab"), group("cd", exclusive=False)])
    gateway.make_ready("a")
    gateway.ask("c")
    assert gateway.loads[-1] == ("c", [])


def test_a_persistent_group_is_never_evicted_by_others() -> None:
    gateway = CoreGateway(Fifo, groups=[group("ab", persistent=True, exclusive=False), group("cd")])
    gateway.make_ready("a")
    gateway.ask("c")
    assert gateway.loads[-1] == ("c", [])
    gateway.loaded("c")
    gateway.ask("b")
    assert gateway.loads[-1] == ("b", ["a"]), "its own members still take turns"


def test_a_persistent_group_is_not_evicted_for_room_either() -> None:
    gateway = CoreGateway(Fifo, room=1.0, groups=[group("a", persistent=True)])
    gateway.make_ready("a")
    request = gateway.ask("b")
    assert len(gateway.loads) == 1 and "pinned or persistent" in gateway.why(request)


def test_a_model_in_no_group_is_bound_by_the_ledger_alone() -> None:
    gateway = CoreGateway(Fifo, groups=[group("ab")])
    gateway.make_ready("c")
    gateway.ask("a")
    assert gateway.loads[-1] == ("a", [])


def test_groups_and_the_ledger_must_both_hold() -> None:
    gateway = CoreGateway(Fifo, "abx", room=2.0, groups=[group("ab")], sizes={"b": 2.0})
    gateway.make_ready("x", "a")
    gateway.ask("b")
    assert gateway.loads[-1] == ("b", ["a", "x"]), "a for the group, x for the room"


@pytest.mark.parametrize("busy", ["a", "b"])
def test_an_exclusive_load_waits_for_every_other_group_to_be_idle(busy: str) -> None:
    gateway = CoreGateway(Fifo, groups=[group("ab", swap=False, exclusive=False), group("cd")])
    gateway.make_ready("a", "b")
    serving = gateway.ask(busy)
    gateway.ask("c")
    assert gateway.state("c") == ""
    gateway.done(serving)
    assert gateway.loads[-1] == ("c", ["a", "b"])
