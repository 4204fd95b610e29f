"""Random sequences of everything that can happen. The long campaign is `python -m tests.gateway.core.campaign`."""

import pytest
from tests.gateway.core.world import run_seed

from ostler.gateway.core.fifo import Fifo
from ostler.gateway.core.serial import Serial

SEEDS_EACH = 50


@pytest.mark.parametrize("tenth", range(10))
def test_everybody_is_answered_once_whatever_happens(tenth: int) -> None:
    for seed in range(tenth * SEEDS_EACH, (tenth + 1) * SEEDS_EACH):
        run_seed(seed)


@pytest.mark.parametrize("kind", [Serial, Fifo])
def test_the_same_seed_is_the_same_world(kind: type[Serial] | type[Fifo]) -> None:
    first, again = run_seed(77, kind=kind), run_seed(77, kind=kind)
    assert first.answers == again.answers and first.events == again.events


def test_the_worlds_hold_several_processes_of_a_model_with_gates_and_without() -> None:
    worlds = [run_seed(seed, kind=Fifo) for seed in range(60)]
    grown = [world for world in worlds if world.most > 1]
    assert {world.machine.has_gates for world in grown if isinstance(world.machine, Fifo)} == {True, False}
    assert any(seen.places.keys() == {"near", "far"} for each in worlds for seen in each.machine.state.learnt.values())


def test_the_worlds_hold_what_they_are_for() -> None:
    """Of each kind of answer there is some."""
    answers = {answer for seed in range(60) for answer in run_seed(seed).answers.values()}
    assert answers == {
        "served",
        "cut",
        "left",
        "nobody there",
        "model_not_found",
        "model_load_failed",
        "queue_full",
        "no_machine",
        "unloaded",
        "shutting_down",
    }
