"""The queue over HTTP: who is next, and what each user sees of it."""

from tests.protocol.api import Api
from tests.protocol.hub import RunningHub


async def test_the_queue_is_shown_in_order_and_a_new_priority_shows_at_once(hub: RunningHub, api: Api) -> None:
    first = await api.submit(name="first", gpu_count=1)
    second = await api.submit(name="second", min_cpu_cores=2)
    found = await api.get("/v1/queue")
    assert [(place["place"], place["id"], place["name"]) for place in found["queue"]] == [
        (1, first, "first"),
        (2, second, "second"),
    ]
    assert (found["waiting"], found["queue"][0]["gpus"], found["queue"][1]["cores"]) == (2, 1, 2.0)
    changed = await api.post(f"/v1/jobs/{second}/priority", {"priority": 7})
    assert changed["priority"] == 7
    assert [place["id"] for place in (await api.get("/v1/queue"))["queue"]] == [second, first]


async def test_a_users_own_places_count_the_others_who_come_before(hub: RunningHub, api: Api) -> None:
    await api.submit(name="others", priority=1)
    ann = await hub.user("ann")
    own = await ann.submit(name="own")
    found = await ann.get("/v1/queue")
    assert [(place["place"], place["id"]) for place in found["queue"]] == [(2, own)]
    assert {user["user"] for user in found["users"]} <= {"ann"}


async def test_nobody_gives_anothers_job_another_priority(hub: RunningHub, api: Api) -> None:
    job = await api.submit()
    ann = await hub.user("ann")
    await ann.post(f"/v1/jobs/{job}/priority", {"priority": 7}, status=404)
    for wrong in ({"priority": "high"}, {"priority": 10**9}, {}, {"priority": 1, "more": 2}):
        await api.post(f"/v1/jobs/{job}/priority", wrong, status=422)
    assert (await api.job(job))["priority"] == 0
