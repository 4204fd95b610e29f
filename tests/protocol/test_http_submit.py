"""Submitting: what is refused and how, all or none, ids, idempotency."""

import asyncio
import json
from typing import Any

import pytest
from tests.protocol.api import Api
from tests.protocol.hub import RunningHub

JOB: dict[str, Any] = {"command": ["true"]}


async def nothing_was_submitted(api: Api) -> bool:
    return not (await api.get("/v1/jobs"))["jobs"]


# What is refused


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b'{"command": ["true"]',
        b'{"command": ["true"]} trailing',
        b"[",
        b'[{"command": ["true"]}',
        b'{"command": ["\xff\xfe"]}',
        b"[" * 100_000,
        b'[{"command": ["true"], "metadata": ' + b'{"a":' * 10_000 + b"1" + b"}" * 10_000 + b"}]",
        b'{"command": ["true"], "metadata": ' + b'{"a":' * 10_000 + b"1" + b"}" * 10_000 + b"}",
        b'{"command": ["true"], "priority": NaN}',
    ],
    ids=lambda body: repr(body[:36]),
)
async def test_what_is_not_json_is_400(api: Api, body: bytes) -> None:
    (await api.call("POST", "/v1/jobs", data=body)).problem(400)
    assert await nothing_was_submitted(api)


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        ({**JOB, "gpus": 1}, "gpus"),
        ({**JOB, "gpu_count": -1}, "gpu_count"),
        ({**JOB, "min_memory_gb": -0.5}, "min_memory_gb"),
        ({**JOB, "gpu_count": "two"}, "gpu_count"),
        ({**JOB, "gpu_count": 1.5}, "gpu_count"),
        ({**JOB, "gpu_count": None}, "gpu_count"),
        ({**JOB, "array": -3}, "array"),
        ({**JOB, "max_attempts": -1}, "max_attempts"),
        ({}, "command"),
        ({"command": []}, "command"),
        ({"command": [""]}, "command"),
        ({"command": "true"}, "command"),
        ({"command": ["true", 3]}, "command"),
        ({"command": ["a\0b"]}, "command"),
        ({**JOB, "env": {"A": 1}}, "env"),
        ({**JOB, "env": {"A=B": "x"}}, "env"),
        ({**JOB, "id": "-starts-with-a-dash"}, "id"),
        ({**JOB, "id": "has.a.dot"}, "id"),
        ({**JOB, "id": "x" * 129}, "id"),
        ({**JOB, "id": "a/b"}, "id"),
        ({**JOB, "labels": ["zone"]}, "labels"),
        ({**JOB, "labels": ["zone ~ eu"]}, "labels"),
        ({**JOB, "labels": "zone = eu"}, "labels"),
        ({**JOB, "prefer_labels": [""]}, "prefer_labels"),
        ({**JOB, "type": "daemon"}, "type"),
        ({**JOB, "job_tier": "urgent"}, "job_tier"),
        ({**JOB, "slot_pool": "swimming"}, "slot_pool"),
        ({**JOB, "gpu_backend": "cuda"}, "gpu_backend"),
        ({**JOB, "preemptible": "yes"}, "preemptible"),
        ({**JOB, "array": 2, "node_count": 2}, "array"),
    ],
    ids=lambda value: json.dumps(value)[:48] if isinstance(value, dict) else value,
)
async def test_a_bad_spec_is_422_and_says_where(api: Api, spec: dict[str, Any], where: str) -> None:
    problem = (await api.call("POST", "/v1/jobs", json=spec)).problem(422)
    assert where in {error["where"].split("[")[0].split(".")[0] for error in problem["errors"]}
    assert all(error["what"] for error in problem["errors"])
    assert await nothing_was_submitted(api)


async def test_every_wrong_field_is_named_at_once(api: Api) -> None:
    problem = (await api.call("POST", "/v1/jobs", json={"command": [], "type": "x", "job_tier": "y"})).problem(422)
    assert {error["where"] for error in problem["errors"]} == {"command", "type", "job_tier"}


@pytest.mark.parametrize("body", [b"null", b"17", b'"text"', b"true", b"[1]", b"[[]]", b"[null]"])
async def test_json_that_is_no_spec_is_422(api: Api, body: bytes) -> None:
    (await api.call("POST", "/v1/jobs", data=body)).problem(422)


async def test_an_unknown_field_is_answered_with_the_nearest_one(api: Api) -> None:
    problem = (await api.call("POST", "/v1/jobs", json={**JOB, "gpu_counts": 1})).problem(422)
    assert "gpu_count" in problem["detail"]


async def test_a_spec_of_10_mb_is_413(api: Api) -> None:
    large = {**JOB, "metadata": {"padding": "x" * 10_000_000}}
    for body in (large, [JOB, large]):
        (await api.call("POST", "/v1/jobs", json=body)).problem(413)
    assert await nothing_was_submitted(api)


async def test_a_spec_of_just_under_256_kib_is_taken_and_one_over_it_is_not(hub: RunningHub, api: Api) -> None:
    bare = len(json.dumps({**JOB, "metadata": {"p": ""}}))
    over = {**JOB, "metadata": {"p": "x" * (256 * 1024 - bare + 1)}}
    (await api.call("POST", "/v1/jobs", data=json.dumps(over).encode())).problem(413)
    under = {**JOB, "metadata": {"p": "x" * (256 * 1024 - bare)}}
    answer = await api.call("POST", "/v1/jobs", data=json.dumps(under).encode())
    assert answer.status == 201
    worker = await hub.worker()
    task = await worker.take(answer.json()["id"])
    assert task.payload["spec"]["metadata"] == under["metadata"]


# Arrays of specs


async def test_an_array_of_specs_is_submitted_whole(api: Api) -> None:
    answer = await api.post("/v1/jobs", [{**JOB, "name": f"n{number}"} for number in range(50)], 201)
    assert len(set(answer["ids"])) == 50
    assert [(await api.job(job))["name"] for job in answer["ids"][:3]] == ["n0", "n1", "n2"]


@pytest.mark.parametrize("bad", [{"command": []}, {**JOB, "gpus": 1}, {**JOB, "id": "taken", "name": "other"}])
async def test_an_array_of_specs_with_one_bad_one_leaves_nothing(api: Api, bad: dict[str, Any]) -> None:
    await api.submit(id="taken")
    answer = await api.call("POST", "/v1/jobs", json=[JOB, {**JOB, "id": "good"}, bad])
    answer.problem(409 if "id" in bad else 422)
    assert [job["id"] for job in (await api.get("/v1/jobs"))["jobs"]] == ["taken"]


async def test_equal_specs_in_one_request_are_jobs_of_their_own_and_each_is_what_it_says(api: Api) -> None:
    other = {**JOB, "name": "other", "gpu_count": 2}
    specs = [JOB, JOB, other, other, JOB, {**JOB, "id": "mine"}]
    ids = (await api.call("POST", "/v1/jobs", json=specs)).json()["ids"]
    assert len(set(ids)) == 6 and ids[-1] == "mine"
    jobs = [await api.job(one) for one in ids]
    assert [job["id"] for job in jobs] == ids == [job["spec"]["id"] for job in jobs]
    assert [job["name"] for job in jobs] == ["", "", "other", "other", "", ""]
    assert [job["spec"].get("gpu_count", 0) for job in jobs] == [0, 0, 2, 2, 0, 0]


async def test_equal_specs_that_choose_their_id_are_one_job(api: Api) -> None:
    chosen = {**JOB, "id": "mine"}
    assert (await api.post("/v1/jobs", [chosen, chosen], 201))["ids"] == ["mine", "mine"]
    assert len((await api.get("/v1/jobs"))["jobs"]) == 1


async def test_a_bad_spec_in_an_array_is_named_by_its_place(api: Api) -> None:
    problem = (await api.call("POST", "/v1/jobs", json=[JOB, JOB, {"command": []}])).problem(422)
    assert [error["where"] for error in problem["errors"]] == ["[2].command"]


# Ids


async def test_generated_ids_are_sortable_by_time(api: Api) -> None:
    ids = []
    for _ in range(5):
        ids.append(await api.submit())
        await asyncio.sleep(0.002)  # ids tell milliseconds apart
    assert ids == sorted(ids)


async def test_a_clients_id_is_kept_and_the_same_spec_again_is_200(api: Api) -> None:
    spec = {**JOB, "id": "my-job_1", "gpu_count": 3}
    assert (await api.post("/v1/jobs", spec, 201))["id"] == "my-job_1"
    assert (await api.post("/v1/jobs", spec, 200))["id"] == "my-job_1"
    assert len((await api.get("/v1/jobs"))["jobs"]) == 1


async def test_a_clients_id_with_another_spec_is_409_and_changes_nothing(api: Api) -> None:
    await api.submit(id="mine", name="first")
    (await api.call("POST", "/v1/jobs", json={**JOB, "id": "mine", "name": "second"})).problem(409)
    assert (await api.job("mine"))["name"] == "first"


@pytest.mark.parametrize(
    ("first", "again"),
    [
        ({"env": {"A": "1", "B": "2"}}, {"env": {"B": "2", "A": "1"}}),
        ({"metadata": {"x": {"a": 1, "b": 2}}}, {"metadata": {"x": {"b": 2, "a": 1}}}),
        ({}, {"gpu_count": 0, "type": "batch"}),
        ({"min_memory_gb": 2}, {"min_memory_gb": 2.0}),
    ],
    ids=["env in another order", "metadata in another order", "defaults written out", "2 and 2.0"],
)
async def test_the_same_spec_written_differently_is_the_same_spec(
    api: Api, first: dict[str, Any], again: dict[str, Any]
) -> None:
    await api.submit(id="mine", **first)
    await api.post("/v1/jobs", {**JOB, "id": "mine", **again}, 200)


async def test_the_same_spec_again_is_answered_with_the_state_that_the_job_is_in(hub: RunningHub, api: Api) -> None:
    spec = {**JOB, "id": "mine"}
    await api.post("/v1/jobs", spec, 201)
    worker = await hub.worker()
    await worker.end(await worker.take("mine"))
    assert (await api.post("/v1/jobs", spec, 200))["state"] == "succeeded"


async def test_the_same_id_submitted_from_many_sides_at_once_is_one_job(api: Api) -> None:
    spec = {**JOB, "id": "mine"}
    answers = await asyncio.gather(*(api.call("POST", "/v1/jobs", json=spec) for _ in range(20)))
    assert sorted(answer.status for answer in answers) == [200] * 19 + [201]


async def test_anothers_id_is_409(hub: RunningHub) -> None:
    ann, bob = await hub.user("ann"), await hub.user("bob")
    await ann.submit(id="taken")
    (await bob.call("POST", "/v1/jobs", json={**JOB, "id": "taken"})).problem(409)


# Idempotency-Key


async def test_the_same_key_and_body_give_the_same_job(api: Api) -> None:
    headers = {"Idempotency-Key": "k-1"}
    first = await api.call("POST", "/v1/jobs", json=JOB, headers=headers)
    assert first.status == 201
    again = await api.call("POST", "/v1/jobs", json=JOB, headers=headers)
    assert again.status in (200, 201)
    assert again.json()["id"] == first.json()["id"]
    other = await api.call("POST", "/v1/jobs", json=JOB, headers={"Idempotency-Key": "k-2"})
    assert other.json()["id"] != first.json()["id"]
    assert len((await api.get("/v1/jobs"))["jobs"]) == 2


async def test_the_same_key_and_array_give_the_same_jobs(api: Api) -> None:
    headers = {"Idempotency-Key": "k-1"}
    first = await api.call("POST", "/v1/jobs", json=[JOB, JOB, JOB], headers=headers)
    again = await api.call("POST", "/v1/jobs", json=[JOB, JOB, JOB], headers=headers)
    assert again.json()["ids"] == first.json()["ids"]
    assert len((await api.get("/v1/jobs"))["jobs"]) == 3


async def test_the_same_key_with_another_body_is_409(api: Api) -> None:
    headers = {"Idempotency-Key": "k-1"}
    await api.call("POST", "/v1/jobs", json=JOB, headers=headers)
    (await api.call("POST", "/v1/jobs", json={**JOB, "name": "x"}, headers=headers)).problem(409)
    assert len((await api.get("/v1/jobs"))["jobs"]) == 1


async def test_a_key_is_its_users_own(hub: RunningHub) -> None:
    headers = {"Idempotency-Key": "k-1"}
    ann, bob = await hub.user("ann"), await hub.user("bob")
    hers = await ann.call("POST", "/v1/jobs", json=JOB, headers=headers)
    his = await bob.call("POST", "/v1/jobs", json={**JOB, "name": "his"}, headers=headers)
    assert (hers.status, his.status) == (201, 201)
    assert hers.json()["id"] != his.json()["id"]


async def test_a_key_is_remembered_across_a_restart(hub: RunningHub) -> None:
    headers = {"Idempotency-Key": "k-1"}
    first = await hub.api.call("POST", "/v1/jobs", json=JOB, headers=headers)
    await hub.restart()
    again = await hub.api.call("POST", "/v1/jobs", json=JOB, headers=headers)
    assert again.json()["id"] == first.json()["id"]


async def test_the_same_key_from_many_sides_at_once_is_one_job(api: Api) -> None:
    headers = {"Idempotency-Key": "k-1"}
    answers = await asyncio.gather(*(api.call("POST", "/v1/jobs", json=JOB, headers=headers) for _ in range(20)))
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len((await api.get("/v1/jobs"))["jobs"]) == 1


async def test_a_submit_that_was_refused_does_not_use_up_its_key(api: Api) -> None:
    headers = {"Idempotency-Key": "k-1"}
    (await api.call("POST", "/v1/jobs", json={"command": []}, headers=headers)).problem(422)
    assert (await api.call("POST", "/v1/jobs", json=JOB, headers=headers)).status == 201
