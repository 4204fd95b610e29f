"""Groups, sets and turns of `fifo`, seen from outside."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.gateway.e2e.rig import Rig, model, rig

pytestmark = pytest.mark.asyncio(loop_scope="module")
NAMES = ("left", "right", "both", "also", "kept", "free", "one", "two", "three")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    """Nine models, all of which would fit beside each other; and two of which only one does."""
    groups = {
        "turns": {"members": ["left", "right"], "exclusive": False},
        "together": {"members": ["both", "also"], "swap": False},
        "always": {"members": ["kept"], "persistent": True, "exclusive": False},
    }
    sets = [["one", "two"], ["three"]]
    models = [*(model(name, vram="2g") for name in NAMES), model("a"), model("b")]
    async with rig(tmp_path_factory.mktemp("groups"), models, scheduler="fifo", groups=groups, sets=sets) as made:
        yield made


async def _ready(yard: Rig) -> set[str]:
    running = (await yard.ask("GET", "/running")).json["running"]
    return {one["model"] for one in running if one["state"] == "ready"}


async def _after(yard: Rig, *names: str) -> set[str]:
    for name in names:
        (answer,) = await yard.answered(yard.call(name))
        assert answer.status == 200
    return await _ready(yard)


async def test_members_of_a_group_that_swaps_are_loaded_one_at_a_time(yard: Rig) -> None:
    assert await _after(yard, "left", "right", "free") == {"right", "free"}


async def test_members_of_a_group_that_does_not_swap_are_loaded_together(yard: Rig) -> None:
    assert await _after(yard, "both", "also") == {"both", "also"}


async def test_the_load_of_an_exclusive_group_evicts_other_groups_and_no_model_without_one(yard: Rig) -> None:
    assert await _after(yard, "left", "free", "both") == {"free", "both"}


async def test_a_persistent_group_is_evicted_by_no_other(yard: Rig) -> None:
    assert await _after(yard, "kept", "both") == {"kept", "both"}


async def test_models_of_sets_are_loaded_together_only_if_one_set_holds_them_all(yard: Rig) -> None:
    assert await _after(yard, "one", "two", "free") == {"one", "two", "free"}
    assert await _after(yard, "three") == {"three", "free"}


async def _contested(yard: Rig, quantum: object) -> list[str]:
    """`b` waits while `a` serves, and then somebody asks for `a` again."""
    yard.gateway_table["quantum"] = quantum
    yard.configure()
    assert (await yard.ask_hub("POST", "/v1/models/reload")).status == 200
    calls = [yard.hold("a", "1")]
    held = await yard.stage.asked("1")
    calls.append(yard.call("b", "2"))
    await yard.queued("b")
    calls.append(yard.call("a", "3"))
    await yard.until(lambda: yard.stage.diary()[-1] == "a 3" or len(yard.gateway._waiting) == 2, "a is asked for again")
    held.end()
    assert {answer.status for answer in await yard.answered(*calls)} == {200}
    return yard.stage.diary()


async def test_a_resident_whose_turn_is_over_takes_no_new_requests_and_yields(yard: Rig) -> None:
    assert await _contested(yard, 0) == ["load a", "a 1", "load b", "b 2", "load a", "a 3"]


async def test_a_resident_whose_turn_lasts_serves_on_while_another_model_waits(yard: Rig) -> None:
    assert await _contested(yard, 1000) == ["load a", "a 1", "a 3", "load b", "b 2"]


async def test_a_load_that_would_evict_the_target_of_another_waits_for_that(yard: Rig) -> None:
    yard.models["slow"] = model("slow", "slow")
    yard.configure()
    assert (await yard.ask_hub("POST", "/v1/models/reload")).status == 200
    first = yard.hold("slow", "1")
    await yard.stage.began("slow")
    second = yard.call("a", "2")
    await yard.queued("slow", "a")
    assert yard.stage.loads("a") == 0
    yard.stage.heal("slow")
    (await yard.stage.asked("1")).end()
    assert [answer.status for answer in await yard.answered(first, second)] == [200, 200]
    assert yard.stage.diary() == ["load slow", "slow 1", "load a", "a 2"]
