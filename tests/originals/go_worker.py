"""A worker and a tool of the original make: Go structs on a real socket. Each frame of the hub is decoded as Go would."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from tests.originals.go_json import CannotUnmarshal, Map, Pointer, Slice, Struct, struct
from tests.protocol.hub import RunningHub

PATIENCE_S = 60.0

SLOTS = struct("SlotStatus", batch_total="int", batch_in_use="int", service_total="int", service_in_use="int")
GPU_INFO = struct(
    "GPUDetectionInfo",
    gpu_type="string",
    count="int",
    devices=Slice("string"),
    driver="string",
    mem_total="uint64",
)
CAPABILITIES = struct(
    "WorkerCapabilities",
    gpu_backend="string",
    gpu_count="int",
    gpu_type="string",
    vram_gb="float64",
    cpu_count="int",
    memory_gb="float64",
    hostname="string",
    gpu_info=GPU_INFO,
)
ACTIVE_TASK = struct("ActiveTaskReport", task_id="string", state="string", started_at="time")
HEALTH_CHECK = struct("HealthCheck", liveness="string", readiness="string", interval_secs="int")
SPEC = struct(
    "JobSpec",
    id="string",
    type="string",
    slot_pool="string",
    user_id="string",
    job_tier="string",
    gpu_count="int",
    gpu_type="string",
    gpu_backend="string",
    min_vram_gb="float64",
    min_cpu_cores="int",
    min_memory_gb="float64",
    node_count="int",
    max_runtime_hours="int",
    command=Slice("string"),
    env=Map("string"),
    prolog=Slice("string"),
    epilog=Slice("string"),
    snapshot_id="string",
    snapshot_sha="string",
    health_check=Pointer(HEALTH_CHECK),
    metadata=Map("string"),
)
WORKER_INFO = struct(
    "WorkerInfo",
    id="string",
    backend="string",
    gpu_count="int",
    vram_gb="float64",
    cpu_count="int",
    status="string",
    active_jobs="int",
    total_slots="int",
    last_heartbeat="time",
)
JOB_SUMMARY = struct("JobSummary", task_id="string", job_name="string", status="string", started_at="time")
MESSAGE = struct("Message", optional="payload error", type="string", payload="raw", error="string")

TO_HUB: dict[str, Struct] = {
    "register": struct("WorkerRegistration", id="string", capabilities=CAPABILITIES, active_tasks=Slice(ACTIVE_TASK)),
    "heartbeat": struct("HeartbeatPayload", worker_id="string", slots=SLOTS, capability=CAPABILITIES),
    "ready_for_work": struct("ReadyPayload", worker_id="string", slots=SLOTS, reason="string"),
    "job_accepted": struct("JobAcceptedPayload", task_id="string"),
    "job_result": struct(
        "JobResultPayload", optional="error", task_id="string", state="string", exit_code="int", error="string"
    ),
    "service_health": struct(
        "ServiceHealthPayload", optional="message", task_id="string", healthy="bool", message="string"
    ),
    "metrics_request": struct("MetricsRequestPayload"),
    "worker_list_request": struct("WorkerListRequest", optional="backend", backend="string"),
    "worker_show_request": struct("WorkerShowRequest", worker_id="string"),
}
FROM_HUB: dict[str, Struct] = {
    "ack": struct("AckPayload", of="string", task_id="string"),
    "job_assign": struct("JobAssignPayload", spec=SPEC, remaining_time="int64"),
    "no_work": struct("NoWorkPayload"),
    "job_cancel": struct("JobCancelPayload", task_id="string", reason="string", grace_seconds="int"),
    "prewarm_hint": struct("PrewarmHintPayload", task_id="string", snapshot_id="string", snapshot_sha="string"),
    "metrics_response": struct("MetricsResponsePayload", text="string"),
    "worker_list_response": struct("WorkerListResponse", workers=Slice(WORKER_INFO)),
    "worker_show_response": struct("WorkerShowResponse", worker=WORKER_INFO, jobs=Slice(JOB_SUMMARY)),
}


def unmarshal(frame: str) -> tuple[str, dict[str, Any], str]:
    """Type, payload and error of a frame of the hub."""
    envelope = MESSAGE.unmarshal(frame)
    kind = envelope["type"]
    if kind not in FROM_HUB:
        raise CannotUnmarshal(f"the original knows no message of the type {kind!r}")
    payload = json.dumps(json.loads(frame).get("payload"))
    return kind, FROM_HUB[kind].unmarshal(_as_written(frame) if payload != "null" else "{}"), envelope["error"]


def _as_written(frame: str) -> str:
    """The bytes of the payload: `8.0` must stay `8.0`."""
    decoder = json.JSONDecoder()
    start = frame.index('"payload":') + len('"payload":')
    _, end = decoder.raw_decode(frame[start:].lstrip())
    return frame[start:].lstrip()[:end]


class GoPeer:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self.frames: list[str] = []
        """Each frame of the hub, as it came."""

    async def send(self, kind: str, **values: Any) -> None:
        await self.send_raw(kind, json.loads(TO_HUB[kind].marshal(**values)))

    async def send_raw(self, kind: str, payload: Any) -> None:
        await self._socket.send_str(MESSAGE.marshal(type=kind, payload=payload))

    async def receive(self) -> tuple[str, dict[str, Any], str]:
        self.frames.append(await self._socket.receive_str(timeout=PATIENCE_S))
        return unmarshal(self.frames[-1])

    async def expect(self, kind: str) -> dict[str, Any]:
        found, payload, error = await self.receive()
        assert (found, error) == (kind, ""), f"expected {kind}, the hub sent {self.frames[-1]}"
        return payload


class GoWorker(GoPeer):
    """Registers without a token of its own and without extensions, as the original does."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, name: str, slots: int, **capabilities: Any) -> None:
        super().__init__(socket)
        self.name = name
        self.capabilities = {"gpu_backend": "cpu", "cpu_count": 8, "memory_gb": 32.0, "hostname": name, **capabilities}
        self.slots = {"batch_total": slots}

    async def register(self, active: list[dict[str, Any]] | None = None) -> None:
        await self.send("register", id=self.name, capabilities=self.capabilities, active_tasks=active)
        await self.expect("ack")

    async def beat(self) -> None:
        await self.send("heartbeat", worker_id=self.name, slots=self.slots, capability=self.capabilities)
        await self.expect("ack")

    async def ask(self) -> None:
        await self.send("ready_for_work", worker_id=self.name, slots=self.slots, reason="idle")

    async def take(self, task_id: str = "") -> dict[str, Any]:
        """The next assignment, accepted; its spec."""
        assigned = await self.expect("job_assign")
        spec: dict[str, Any] = assigned["spec"]
        assert task_id in ("", spec["id"])
        await self.send("job_accepted", task_id=spec["id"])
        return spec

    async def end(self, task_id: str, state: str = "completed", exit_code: int = 0, error: str = "") -> None:
        await self.send("job_result", task_id=task_id, state=state, exit_code=exit_code, error=error)
        assert (await self.expect("ack"))["of"] == "job_result"

    async def quiet(self) -> None:
        """The hub has taken all messages so far, and sends nothing: each result is acknowledged in its turn."""
        await self.end("no-such-task", "failed")


@asynccontextmanager
async def go_worker(
    hub: RunningHub, name: str = "gpu-worker-1", slots: int = 4, **capabilities: Any
) -> AsyncIterator[GoWorker]:
    async with _socket(hub, "/v1/ws/worker", hub.join_token) as socket:
        yield GoWorker(socket, name, slots, **capabilities)


@asynccontextmanager
async def go_tool(hub: RunningHub) -> AsyncIterator[GoPeer]:
    async with _socket(hub, "/v1/ws/cli", hub.admin_token) as socket:
        yield GoPeer(socket)


@asynccontextmanager
async def _socket(hub: RunningHub, path: str, token: str) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.ws_connect(hub.url.replace("http", "ws", 1) + path) as socket,
    ):
        yield socket
