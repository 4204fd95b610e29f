"""Random sequences of everything that can happen. The long campaign is `python -m tests.gateway.core.campaign`."""

import pytest
from tests.gateway.core.random_gateway import run_seed

from ostler.gateway.core.fifo import Fifo
from ostler.gateway.core.serial import Serial

SEEDS_EACH = 50


@pytest.mark.parametrize("tenth", range(10))
def test_everybody_is_answered_once_whatever_happens(tenth: int) -> None:
    for seed in range(tenth * SEEDS_EACH, (tenth + 1) * SEEDS_EACH):
        run_seed(seed)


@pytest.mark.parametrize("kind", [Serial, Fifo])
def test_the_same_seed_gives_the_same_events_and_answers(kind: type[Serial] | type[Fifo]) -> None:
    first, again = run_seed(77, kind=kind), run_seed(77, kind=kind)
    assert first.answers == again.answers and first.events == again.events


def test_random_gateways_have_several_processes_of_a_model_with_gates_and_without() -> None:
    gateways = [run_seed(seed, kind=Fifo) for seed in range(60)]
    grown = [one for one in gateways if one.most > 1]
    assert {one.machine.has_gates for one in grown if isinstance(one.machine, Fifo)} == {True, False}
    assert any(
        seen.places.keys() == {"near", "far"} for each in gateways for seen in each.machine.state.learnt.values()
    )


def test_random_gateways_reach_the_rare_cases_that_they_are_for() -> None:
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
        "request_limit_reached",
        "no_machine",
        "unloaded",
        "shutting_down",
    }
