"""Groups, sets and turns of `fifo`, seen from outside."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.gateway.e2e.running_gateway import RunningGateway, model, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
NAMES = ("left", "right", "both", "also", "kept", "free", "one", "two", "three")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningGateway]:
    """Nine models, all of which would fit beside each other; and two of which only one does."""
    groups = {
        "turns": {"members": ["left", "right"], "exclusive": False},
        "together": {"members": ["both", "also"], "swap": False},
        "always": {"members": ["kept"], "persistent": True, "exclusive": False},
    }
    sets = [["one", "two"], ["three"]]
    models = [*(model(name, vram="2g") for name in NAMES), model("a"), model("b")]
    async with running_gateway(
        tmp_path_factory.mktemp("groups"), models, scheduler="fifo", groups=groups, sets=sets
    ) as made:
        yield made


async def _ready(gateway: RunningGateway) -> set[str]:
    running = (await gateway.ask("GET", "/running")).json["running"]
    return {one["model"] for one in running if one["state"] == "ready"}


async def _after(gateway: RunningGateway, *names: str) -> set[str]:
    for name in names:
        (answer,) = await gateway.answered(gateway.call(name))
        assert answer.status == 200
    return await _ready(gateway)


async def test_members_of_a_group_that_swaps_are_loaded_one_at_a_time(gateway: RunningGateway) -> None:
    assert await _after(gateway, "left", "right", "free") == {"right", "free"}


async def test_members_of_a_group_that_does_not_swap_are_loaded_together(gateway: RunningGateway) -> None:
    assert await _after(gateway, "both", "also") == {"both", "also"}


async def test_the_load_of_an_exclusive_group_evicts_other_groups_and_no_model_without_one(
    gateway: RunningGateway,
) -> None:
    assert await _after(gateway, "left", "free", "both") == {"free", "both"}


async def test_a_persistent_group_is_evicted_by_no_other(gateway: RunningGateway) -> None:
    assert await _after(gateway, "kept", "both") == {"kept", "both"}


async def test_models_of_sets_are_loaded_together_only_if_one_set_holds_them_all(gateway: RunningGateway) -> None:
    assert await _after(gateway, "one", "two", "free") == {"one", "two", "free"}
    assert await _after(gateway, "three") == {"three", "free"}


async def _contested(gateway: RunningGateway, quantum: object) -> list[str]:
    """`b` waits while `a` serves, and then somebody asks for `a` again."""
    gateway.gateway_table["quantum"] = quantum
    gateway.configure()
    assert (await gateway.ask_hub("POST", "/v1/models/reload")).status == 200
    calls = [gateway.hold("a", "1")]
    held = await gateway.servers.asked("1")
    calls.append(gateway.call("b", "2"))
    await gateway.queued("b")
    calls.append(gateway.call("a", "3"))
    await gateway.until(
        lambda: gateway.servers.diary()[-1] == "a 3" or len(gateway.hub.gateway._waiting) == 2, "a is asked for again"
    )
    held.end()
    assert {answer.status for answer in await gateway.answered(*calls)} == {200}
    return gateway.servers.diary()


async def test_a_resident_whose_turn_is_over_takes_no_new_requests_and_yields(gateway: RunningGateway) -> None:
    assert await _contested(gateway, 0) == ["load a", "a 1", "load b", "b 2", "load a", "a 3"]


async def test_a_resident_whose_turn_lasts_serves_on_while_another_model_waits(gateway: RunningGateway) -> None:
    assert await _contested(gateway, 1000) == ["load a", "a 1", "a 3", "load b", "b 2"]


async def test_a_load_that_would_evict_the_target_of_another_waits_for_that(gateway: RunningGateway) -> None:
    gateway.models["slow"] = model("slow", "slow")
    gateway.configure()
    assert (await gateway.ask_hub("POST", "/v1/models/reload")).status == 200
    first = gateway.hold("slow", "1")
    await gateway.servers.began("slow")
    second = gateway.call("a", "2")
    await gateway.queued("slow", "a")
    assert gateway.servers.loads("a") == 0
    gateway.servers.heal("slow")
    (await gateway.servers.asked("1")).end()
    assert [answer.status for answer in await gateway.answered(first, second)] == [200, 200]
    assert gateway.servers.diary() == ["load slow", "slow 1", "load a", "a 2"]
