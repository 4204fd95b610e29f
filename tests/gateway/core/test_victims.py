"""The hub evicts what the pure scheduler names: gates, reports and the ledger change no choice."""

import random

import pytest
from benchmarks.gateway_trace import LOAD_S, Pure, Slots
from benchmarks.gateway_world import Asked, GatewayWorld

from ostler.gateway.core.fifo import Fifo
from ostler.gateway.core.models import Config, Recipe, Sets

SITUATIONS = 1000
SHARES = 4


def situation(number: int) -> tuple[Config, int, list[Asked]]:
    """Residents that were used at random, and then a request for a model that is not loaded."""
    draw = random.Random(f"victims {number}")
    slots = draw.randint(2, 5)
    residents = [f"m{index}" for index in range(slots)]
    costs = {name: draw.choice((1.0, 1.0, 5.0, 5000.0)) for name in residents}
    recipes = tuple(Recipe(name=name, load_s=LOAD_S) for name in (*residents, "cold"))
    requests = [Asked(index * 30.0, name, 1.0) for index, name in enumerate(residents)]
    at = 30.0 * slots + 60.0
    for _ in range(draw.randint(0, 40)):
        at += draw.expovariate(1 / 20)
        requests.append(Asked(at, draw.choice(residents), draw.uniform(0.5, 30.0)))
    requests.append(Asked(at + draw.uniform(5.0, 300.0), "cold", 1.0))
    return Config(models=recipes, sets=Sets(evict_costs=costs)), slots, requests


@pytest.mark.parametrize("share", range(SHARES))
def test_the_hub_evicts_what_the_pure_scheduler_names(share: int) -> None:
    for number in range(share, SITUATIONS, SHARES):
        config, slots, requests = situation(number)
        world = GatewayWorld(config, slots=slots, load_s=LOAD_S, checked=number % 50 == share)
        world.run(requests)
        table = Slots(slots)
        pure = Pure(Fifo(config, table), table, requests)
        in_hub = [(model, evicted) for _, model, evicted in world.loads]
        assert in_hub == pure.evicted, f"situation {number}"
        assert in_hub[-1][0] == "cold" and len(in_hub[-1][1]) == 1


def test_an_eviction_cost_keeps_a_model_whoever_was_loaded_first() -> None:
    recipes = tuple(Recipe(name=name, load_s=LOAD_S) for name in ("dear", "cheap", "cold"))
    config = Config(models=recipes, sets=Sets(evict_costs={"dear": 5000.0}))
    world = GatewayWorld(config, slots=2, load_s=LOAD_S, checked=True)
    world.run([Asked(0.0, "dear", 1.0), Asked(50.0, "cheap", 1.0), Asked(100.0, "cold", 1.0)])
    assert world.loads[-1][1:] == ("cold", ["cheap"])
