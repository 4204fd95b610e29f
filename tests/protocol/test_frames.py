"""The socket itself: who may open it, what every frame is answered with, who holds a worker's name."""

import json

import pytest
from tests.protocol.api import Api
from tests.protocol.client import Worker, connect_refused, message
from tests.protocol.hub import RunningHub

MIB = 1024 * 1024


@pytest.fixture
async def worker(hub: RunningHub) -> Worker:
    return await hub.worker()


async def test_a_socket_without_a_token_or_with_an_unknown_one_is_refused_with_401(hub: RunningHub) -> None:
    assert await connect_refused(hub.url, "") == 401
    assert await connect_refused(hub.url, "no-such-token") == 401


@pytest.mark.parametrize("role", ["viewer", "user", "operator"])
async def test_a_persons_token_opens_no_workers_socket(hub: RunningHub, role: str) -> None:
    person = await hub.user("somebody", role)
    assert await connect_refused(hub.url, person.token) == 403


async def test_a_token_of_role_worker_opens_the_socket(hub: RunningHub) -> None:
    created = await hub.user("", "worker")
    worker = hub.stranger()
    worker.token = created.token
    await hub.join(worker)


async def test_a_revoked_workers_token_opens_nothing_any_more(hub: RunningHub, api: Api) -> None:
    created = await api.post("/v1/tokens", {"role": "worker"}, 201)
    answer = await api.call("DELETE", f"/v1/tokens/{created['id']}")
    assert answer.status == 200
    assert await connect_refused(hub.url, created["token"]) == 401


async def test_an_ack_echoes_the_time_of_the_heartbeat(worker: Worker) -> None:
    ack = await worker.beat(sent_at="2026-01-02T03:04:05.678Z")
    assert ack["sent_at"] == "2026-01-02T03:04:05.678Z"


async def test_a_heartbeat_without_a_time_is_acknowledged_without_one(worker: Worker) -> None:
    assert "sent_at" not in await worker.beat()


async def test_an_unknown_type_is_answered_with_an_error_and_the_connection_stays_open(worker: Worker) -> None:
    await worker.send("dance", tempo=120)
    assert "dance" in await worker.expect_error()
    await worker.beat()


@pytest.mark.parametrize("kind", ["job_assign", "job_cancel", "no_work", "ack", "metrics_response", "log_request"])
async def test_a_message_that_only_a_hub_sends_is_answered_with_an_error(worker: Worker, kind: str) -> None:
    await worker.send(kind, task_id="t", attempt="a", text="", reason="", grace_seconds=1)
    assert kind in await worker.expect_error()
    await worker.beat()


@pytest.mark.parametrize(
    "frame",
    [
        "",
        "not json",
        '{"type": "heartbeat", "payload": {',
        "null",
        "17",
        '"heartbeat"',
        "{}",
        '{"payload": {}}',
        '{"type": 3}',
        '{"type": null, "payload": {}}',
        "[1, 2]",
        '{"type": "heartbeat", "payload": []}',
        '{"type": "heartbeat", "payload": "slots"}',
        "[" * 100_000,
        '{"type": "heartbeat", "payload": {"slots": ' + "[" * 5_000 + "]" * 5_000 + "}}",
        b"\xff\xfe\x00",
    ],
    ids=lambda frame: repr(frame[:40]),
)
async def test_a_malformed_frame_is_answered_with_an_error_and_the_connection_stays_open(
    worker: Worker, frame: str | bytes
) -> None:
    await worker.send_raw(frame)
    await worker.expect_error()
    await worker.beat()


@pytest.mark.parametrize(
    ("kind", "payload", "where"),
    [
        ("heartbeat", {"slots": {"batch_total": "many"}}, "batch_total"),
        ("heartbeat", {"slots": {"batch_total": -1}}, "batch_total"),
        ("heartbeat", {"capability": {"gpu_count": -2}}, "gpu_count"),
        ("heartbeat", {"active_tasks": [{"state": "running"}]}, "task_id"),
        ("job_accepted", {"attempt": "a"}, "task_id"),
        ("job_result", {"task_id": "t"}, "state"),
        ("job_result", {"task_id": "t", "state": "failed", "exit_code": "one"}, "exit_code"),
        ("job_result", {"task_id": "t", "state": "succeeded", "result": "not base64!"}, "result"),
        ("service_health", {"task_id": "t"}, "healthy"),
        ("register", {"capabilities": {}}, "id"),
        ("register", {"id": ""}, "id"),
    ],
)
async def test_a_wrong_payload_is_answered_with_what_and_where(
    worker: Worker, kind: str, payload: dict[str, object], where: str
) -> None:
    await worker.send(kind, **payload)
    error = await worker.expect_error()
    assert kind in error
    assert where in error
    await worker.beat()


@pytest.mark.parametrize("kind", ["heartbeat", "ready_for_work", "job_accepted", "job_result", "metrics_request"])
async def test_whatever_comes_before_the_registration_is_answered_with_an_error(hub: RunningHub, kind: str) -> None:
    worker = hub.stranger()
    await worker.connect()
    await worker.send(kind, task_id="t", state="failed")
    assert "register" in await worker.expect_error()
    await worker.register()


async def test_unknown_fields_are_ignored_everywhere(hub: RunningHub, api: Api) -> None:
    worker = hub.stranger()
    await worker.connect()
    await worker.send_raw(
        json.dumps(
            {
                "type": "register",
                "sender": "from the future",
                "payload": {
                    "id": "w",
                    "capabilities": {"cpu_count": 4, "quantum_cores": 2, "gpu_info": {"colour": "green"}},
                    "active_tasks": [],
                    "protocol": {"batch": False, "telepathy": True},
                    "mood": "good",
                },
            }
        )
    )
    await worker.expect("ack", of="register")
    await worker.beat(slots=worker.slots | {"spare_total": 3}, weather={"rain": True})
    task = await worker.assigned(await api.submit())
    await worker.send("job_accepted", task_id=task.task_id, attempt=task.attempt, eta="soon")
    await worker.end(task, duration=3, notes=["none"])
    assert await api.state(task.task_id) == "succeeded"


async def test_payload_and_error_may_be_absent(worker: Worker) -> None:
    await worker.send_raw('{"type": "ready_for_work"}')
    await worker.expect("no_work")
    await worker.send_raw('{"type": "ready_for_work", "payload": null, "error": "something went wrong here"}')
    await worker.expect("no_work")


async def test_a_frame_over_one_mib_closes_the_connection_with_1009(hub: RunningHub, worker: Worker) -> None:
    await worker.send_raw(json.dumps(message("heartbeat", padding="x" * MIB)))
    assert await worker.closed() == 1009
    await hub.join(worker)


async def test_a_frame_of_one_mib_is_taken(worker: Worker) -> None:
    bare = len(json.dumps(message("ready_for_work", padding="")))
    await worker.send_raw(json.dumps(message("ready_for_work", padding="x" * (MIB - bare))))
    await worker.expect("no_work")


async def test_a_second_connection_takes_over_the_name_and_the_older_is_closed_with_4001(
    hub: RunningHub, api: Api, worker: Worker
) -> None:
    task = await worker.take(await api.submit())
    second = hub.stranger("w")
    second.holding = [task]
    await hub.join(second, [task])
    assert await worker.closed() == 4001
    assert await api.state(task.task_id) == "running"
    await second.end(task)
    assert await api.state(task.task_id) == "succeeded"


async def test_the_worker_stays_online_when_the_older_of_two_sockets_goes(
    hub: RunningHub, api: Api, worker: Worker
) -> None:
    second = hub.stranger("w")
    await hub.join(second)
    assert await worker.closed() == 4001
    await second.take(await api.submit())
    assert (await api.worker("w"))["status"] == "ready"


async def test_a_connection_cannot_change_the_name_it_speaks_for(worker: Worker) -> None:
    await worker.send("register", id="somebody-else", capabilities={})
    assert "register" in await worker.expect_error()
    await worker.beat()


async def test_registering_again_on_the_same_connection_does_not_close_it(worker: Worker) -> None:
    await worker.register()
    await worker.beat()


async def test_metrics_come_over_the_same_socket(worker: Worker) -> None:
    await worker.send("metrics_request")
    text = (await worker.expect("metrics_response"))["text"]
    assert "# TYPE ostler_workers gauge" in text
    assert 'ostler_workers{status="ready"} 1.0' in text


async def test_a_services_health_is_taken_without_an_answer(worker: Worker) -> None:
    await worker.send("service_health", task_id="t", healthy=True, message="fine")
    await worker.quiet()
