"""Workers that say anything at all: the hub stays up, and honest work goes on beside them."""

import random
from typing import Any

import pytest
from tests.protocol.api import Api
from tests.protocol.client import Worker, message
from tests.protocol.hub import RunningHub

ROUNDS = 60
STATES = ["running", "succeeded", "completed", "failed", "cancelled", "returned", "waiting", "confused"]


def anything(rng: random.Random, names: list[tuple[str, str]]) -> dict[str, Any]:
    """A well-formed message about tasks that exist, existed or never did, of anybody."""

    def named() -> dict[str, Any]:
        task_id, attempt = rng.choice(names)
        return {"task_id": task_id, "attempt": rng.choice([attempt, attempt, "", rng.choice(names)[1]])}

    def slots() -> dict[str, int]:
        return {"batch_total": rng.randrange(4), "batch_in_use": rng.randrange(4), "service_total": 1}

    def active() -> list[dict[str, Any]]:
        return [named() | {"state": rng.choice(STATES)} for _ in range(rng.randrange(4))]

    offer = {"cpu_count": rng.randrange(5), "memory_gb": rng.randrange(5), "gpu_count": rng.randrange(3), "vram_gb": 24}
    kind = rng.choice(
        ["register", "heartbeat", "heartbeat", "ready_for_work", "job_accepted", "job_result", "job_result"]
    )
    match kind:
        case "register":
            return message(kind, id="liar", capabilities=offer, active_tasks=active())
        case "heartbeat":
            return message(kind, slots=slots(), capability=offer, active_tasks=active())
        case "ready_for_work":
            return message(kind, slots=slots())
        case "job_accepted":
            return message(kind, **named())
        case _:
            fault = rng.choice(["", "worker", "drain"])
            return message(kind, **named(), state=rng.choice(STATES[1:-2]), exit_code=rng.randrange(2), fault=fault)


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_a_worker_says_the_hub_stays_up_and_honest_work_goes_on(
    hub: RunningHub, api: Api, seed: int
) -> None:
    rng = random.Random(seed)
    liar = hub.stranger("liar")
    liar.batch = True
    await liar.connect()
    await liar.register(protocol={"batch": True, "ahead": 4})
    names = [("nobody", "none")]
    for _ in range(ROUNDS):
        await (api.submit(max_attempts=50) if rng.random() < 0.6 else act(api, rng, names))
        await liar.send_together(*(anything(rng, names) for _ in range(rng.randrange(1, 5))))
        names += await attempts(api)
        await hub.pass_time(rng.choice([1, 5, 10]))
    await liar.drop()
    await honest_work_goes_on(hub, api)


async def act(api: Api, rng: random.Random, names: list[tuple[str, str]]) -> None:
    job = rng.choice(names)[0]
    await api.call("POST", f"/v1/jobs/{job}/{rng.choice(['cancel', 'requeue'])}")


async def attempts(api: Api) -> list[tuple[str, str]]:
    """Tasks with their current attempts, so that lies are about something."""
    page = await api.get("/v1/jobs?limit=5&state=assigned,running,orphaned")
    return [(job["id"], job["attempt"]) for job in page["jobs"] if job["attempt"]]


async def honest_work_goes_on(hub: RunningHub, api: Api) -> None:
    honest: Worker = await hub.worker("honest", slots=1, labels={"honest": "yes"})
    mine = await api.submit(labels=["honest = yes"], priority=100)
    while True:
        task = await honest.take()
        await honest.end(task)
        if task.task_id == mine:
            break
    assert await api.state(mine) == "succeeded"
    await honest.drop()
