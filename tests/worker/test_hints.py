"""What a worker makes of an assignment that may come: nothing that anybody could see."""

from pathlib import Path
from typing import Any

import pytest
from tests.worker.conftest import RunningWorker, eventually
from tests.worker.scripted_hub import ScriptedHub, assignment

from ostler.runtime.base import Launch
from ostler.worker import starting


class Made:
    """The launches that were thought of, and the hints that the runtime was given."""

    def __init__(self, worker: RunningWorker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.launches: list[str] = []
        self.prepared: list[str] = []
        make, prepare = starting.make_launch, worker.runtime.prepare

        def made(order: Any, *rest: Any, **more: Any) -> Launch:
            self.launches.append(order.attempt)
            return make(order, *rest, **more)

        def preparing(launch: Launch) -> None:
            self.prepared.append(launch.attempt)
            prepare(launch)

        monkeypatch.setattr(starting, "make_launch", made)
        monkeypatch.setattr(worker.runtime, "prepare", preparing)


@pytest.fixture
def made(worker: RunningWorker, monkeypatch: pytest.MonkeyPatch) -> Made:
    return Made(worker, monkeypatch)


async def test_what_was_hinted_at_runs_once_when_it_comes_and_is_thought_of_once(
    hub: ScriptedHub, worker: RunningWorker, made: Made, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    message = assignment("a1", "sh", "-c", f"echo $OSTLER_ATTEMPT >> {ran}; test -d $OSTLER_CHECKPOINT")
    await hub.send("job_hint", **message)
    await hub.send("job_assign", **message)
    assert (await hub.next("job_result"))["state"] == "succeeded"
    assert ran.read_text() == "a1\n"
    assert (made.launches, made.prepared) == (["a1"], ["a1"])


async def test_a_hint_alone_is_no_task(hub: ScriptedHub, worker: RunningWorker, made: Made, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    await hub.send("job_hint", **assignment("a1", "sh", "-c", f"echo x >> {ran}"))
    await hub.assign("a2", "true")
    assert (await hub.next("job_result"))["attempt"] == "a2"
    assert made.prepared == ["a1"]
    assert (hub.count("job_accepted"), ran.exists()) == (0, False)
    assert worker.agent.tasks() & {"job-a1"} == set()
    await hub.drop()
    await eventually(lambda: hub.count("register") == 2)
    registered = [payload for kind, payload in hub.messages if kind == "register"][-1]
    assert "a1" not in [task["attempt"] for task in registered.get("active_tasks", [])]


async def test_what_comes_counts_and_not_what_was_hinted_at(
    hub: ScriptedHub, worker: RunningWorker, made: Made, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    await hub.send("job_hint", **assignment("a1", "sh", "-c", f"echo hint >> {ran}"))
    await hub.assign("a1", "sh", "-c", f"echo order >> {ran}")
    assert (await hub.next("job_result"))["state"] == "succeeded"
    assert ran.read_text() == "order\n"
    assert made.launches == ["a1", "a1"]


async def test_a_lost_connection_takes_the_hint_with_it(hub: ScriptedHub, worker: RunningWorker, made: Made) -> None:
    message = assignment("a1", "true")
    await hub.send("job_hint", **message)
    await eventually(lambda: made.prepared)
    await hub.drop()
    await eventually(lambda: hub.count("register") == 2)
    await hub.send("job_assign", **message)
    assert (await hub.next("job_result"))["state"] == "succeeded"
    assert made.launches == ["a1", "a1"]


@pytest.mark.parametrize(
    "more",
    [
        {"type": "service"},
        {"snapshot_id": "0" * 64},
        {"outputs": ["model"]},
        {"devices": [0], "gpu_count": 1},
        {"metadata": {"ostler.call": {"inline": "gAQu"}}},
        {"after": ["a0"]},
        {"rank": 0, "peers": [{"rank": 0, "host": "here"}]},
        {"command": []},
        {"id": "../../etc"},
    ],
    ids=lambda more: next(iter(more)),
)
async def test_only_what_is_plain_is_foreseen(
    hub: ScriptedHub, worker: RunningWorker, made: Made, more: dict[str, Any]
) -> None:
    await hub.send("job_hint", **assignment("a1", "true", **more))
    await hub.assign("a2", "true")
    assert (await hub.next("job_result"))["attempt"] == "a2"
    assert (made.launches, made.prepared) == (["a2"], [])
