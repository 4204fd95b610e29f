"""A stranger who calls everything that the training fleet has, rightly and wrongly, several calls at a time."""

import asyncio
import contextlib
import hashlib
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
from tests.protocol.api import Answer
from tests.protocol.hub import RunningHub
from tests.protocol.puller import bundle, capability, cuda

from ostler.core.check import check

HOSTS = ("pi", "mac", "box", "rack-1", "ä ö")
WORDS = ("", "x", "pi", "%2F", "%00", "😀", "a" * 300, "null", "x.999999999", "0" * 64)
ODD: tuple[Any, ...] = (None, True, -1, 0, 1e308, 2**70, "", "x" * 5000, [], {}, [[[[]]]], {"a": {"b": [1, "\0"]}})
STEPS_S = (1.0, 31.0, 130.0, 300.0, 610.0)
AT_ONCE = 4


def manifest(chance: random.Random) -> str:
    """Some of a few jobs, with needs and policies that change from one to the next; now and then not one at all."""
    if chance.random() < 0.1:
        return chance.choice(["[[jobs]]", "x = ", "[[jobs]]\nmodel = 3", "[hosts.pi]\nallow = []", "\0", ""])
    lines = []
    if chance.random() < 0.4:
        lines.append(f"[hosts.{chance.choice(('pi', 'box'))}]")
        lines.append(chance.choice(("allow_jobs = []", 'allow_jobs = ["gbt"]', 'deny_jobs = ["mlp"]')))
        lines.append(f"capability = {{ cpu_cores = {chance.choice((0, 2))}, gpu_count = {chance.choice((0, 1))} }}")
    lines.append('[defaults]\ncommand = ["train", "{model}", "{hyper...}"]')
    for model in chance.sample(("gbt", "mlp", "cnn", "a/b ö"), chance.randint(0, 4)):
        lines.append(f'[[jobs]]\nmodel = "{model}"\npriority = {chance.randint(0, 2)}')
        lines.append(f"min_cores = {chance.choice((0, 1, 3))}\nmin_vram_gib = {chance.choice((0, 0, 4))}")
        lines.append(
            f"prefer_cuda = {chance.choice(('true', 'false'))}\npreemptible = {chance.choice(('true', 'false'))}"
        )
        lines.append(
            f"require_cuda = {chance.choice(('true', 'false', 'false'))}\nmax_retries = {chance.randint(0, 1)}"
        )
    for name in chance.sample(("s-{lr}", "ö/{lr} %", "x{lr}/cancel"), chance.randint(0, 2)):
        lines.append(f'[[sweeps]]\nname = "{name}"\nmodel = "{name[:2]}"\ngrid = {{ lr = [0.1, 0.2, 1e300] }}')
    return "\n".join(lines)


class Stranger:
    def __init__(self, hub: RunningHub, seed: int) -> None:
        self.hub = hub
        self.chance = random.Random(seed)
        self.jobs: list[str] = ["gbt", "nothing"]
        self.claims: list[tuple[str, dict[str, Any]]] = []
        self.artifacts: list[str] = ["0" * 64]
        self.calls: list[str] = []
        """What was called, for whoever has to find out what went wrong."""
        self._connect()

    def _connect(self) -> None:
        self.machine = self.hub.caller(self.hub.join_token)
        self.operator = self.hub.caller(self.hub.admin_token)
        self.socket: aiohttp.ClientWebSocketResponse | None = None

    async def round(self) -> None:
        """Several calls at once, so that some of them meet in one batch; then the hub must be as well as before."""
        if self.chance.random() < 0.03:
            await self.hub.restart(away_s=self.chance.choice((0.0, 700.0)))
            self._connect()
        elif self.chance.random() < 0.15:
            await self.hub.pass_time(self.chance.choice(STEPS_S))
        elif self.chance.random() < 0.05:
            await self.call(self.operator, "POST", "/v1/artifacts/gc?older_than_s=0")
        names = self.chance.choices(list(CALLS), [weight for _, weight in CALLS.values()], k=AT_ONCE)
        await asyncio.gather(*[CALLS[name][0](self) for name in names])
        await self.well()

    async def well(self) -> None:
        assert (await self.operator.call("GET", "/v1/health")).status == 200
        job_id = await self.operator.submit(min_cpu_cores=1000)
        await self.operator.cancel(job_id)
        await self.hub._hub.loop.look(check)

    async def call(self, api: Any, method: str, path: str, **more: Any) -> Answer:
        answer: Answer = await api.call(method, path, **more)
        self.calls.append(f"{method} {path} {str(more)[:300]} -> {answer.status}")
        assert answer.status < 500, "\n".join(self.calls[-30:]) + f"\n{answer}"
        if answer.status >= 400:
            answer.problem(answer.status)
        return answer

    def spoilt(self, body: dict[str, Any]) -> dict[str, Any]:
        """Now and then with something else in one place."""
        if body and self.chance.random() < 0.2:
            return body | {self.chance.choice(list(body)): self.chance.choice(ODD)}
        return body

    def job(self) -> str:
        return self.chance.choice(self.jobs[-40:] if self.chance.random() < 0.9 else WORDS) or "x"

    # A worker with a connection, of the same names

    async def connect(self) -> None:
        if self.socket is None:
            url = self.hub.url.replace("http", "ws", 1) + "/v1/ws/worker"
            self.socket = await self.machine.session.ws_connect(url)
        lines = [{"task_id": one["job_id"], "attempt": one["attempt"]} for _, one in self.claims[-2:]]
        has = {"cpu_count": 4, "memory_gb": 8, "gpu_backend": "nvidia", "gpu_count": 1, "vram_gb": 16}
        await self._tell("register", id=self.chance.choice(HOSTS), capabilities=has, active_tasks=lines)
        await self._tell("heartbeat", slots={"batch_total": 2}, active_tasks=lines)

    async def tell(self) -> None:
        """Something of a task that it may have, or that a machine without a connection has."""
        task = {"task_id": self.job(), "attempt": ""}
        if self.claims and self.chance.random() < 0.5:
            _, claim = self.chance.choice(self.claims)
            task = {"task_id": claim["job_id"], "attempt": claim["attempt"]}
        kind = self.chance.choice(("job_accepted", "job_result", "heartbeat", "ready_for_work", "drop"))
        if kind == "drop":
            if self.socket is not None:
                await self.socket.close()
            self.socket = None
        elif kind == "heartbeat":
            await self._tell(kind, slots={"batch_total": 2}, active_tasks=[{**task, "checkpoint": "0" * 64}])
        else:
            ids = {"checkpoint_id": self.chance.choice(("", "x")), "artifact_id": self.chance.choice(self.artifacts)}
            await self._tell(kind, **task, state=self.chance.choice(("succeeded", "failed", "returned")), **ids)

    async def _tell(self, kind: str, **payload: Any) -> None:
        if self.socket is not None:
            with contextlib.suppress(ConnectionError):
                self.calls.append(f"tell {kind} {payload}")
                await self.socket.send_json({"type": kind, "payload": payload})

    # Calls

    async def apply(self) -> None:
        query = self.chance.choice(("", "", "", "?plan=1", "?file=%00/..", "?plan=1&file=" + "x" * 300))
        text = manifest(self.chance)
        answer = await self.call(self.operator, "PUT", f"/v1/manifest{query}", data=text.encode())
        if answer.status == 200:
            self.jobs += [line["job_id"] for line in answer.json()["jobs"]]

    async def submit(self) -> None:
        spec: dict[str, Any] = {"command": ["true"], "name": self.chance.choice(WORDS)[:256]}
        spec |= self.chance.choice(
            (
                {"array": 3},
                {"id": self.job()},
                {"training": {"model": "gbt", "hyper": {"x": self.chance.choice(ODD)}}},
                {"prefer_cuda": True, "prefer_cuda_grace_seconds": self.chance.choice((0, 5))},
                {"gpu_count": 1, "min_vram_gb": 2},
                {"type": "service"},
                {"node_count": 2},
                {"scheduling_timeout_seconds": 5, "min_memory_gb": 999},
                {"max_runtime_hours": 0.01},
                {"depends_on": [self.job()]},
            )
        )
        answer = await self.call(self.operator, "POST", "/v1/jobs", json=self.spoilt(spec))
        if answer.status in (200, 201):
            self.jobs.append(answer.json()["id"])

    async def claim(self) -> None:
        free = self.chance.choice((0.0, 8.0, 1000.0))
        offer = self.chance.choice((capability(), cuda((16.0, free), (8.0, 8.0)), cuda(), capability(ram_total_gib=0)))
        offer = offer | {
            "cpu_cores": self.chance.choice((0, 4, 1e9)),
            "ram_available_gib": self.chance.choice((0.5, 8)),
        }
        host = self.chance.choice(HOSTS)
        body = self.spoilt({"hostname": host, "capability": self.spoilt(offer)})
        answer = await self.call(self.machine, "POST", "/v1/job/claim", json=body)
        if answer.status == 200:
            self.claims.append((host, answer.json()))
            self.jobs.append(answer.json()["job_id"])

    async def _say(self, word: str, **more: Any) -> None:
        host, claim = self.chance.choice(self.claims[-12:]) if self.claims else ("pi", {"job_id": "x", "attempt": "y"})
        host = self.chance.choice(HOSTS) if self.chance.random() < 0.1 else host
        job_id = self.job() if self.chance.random() < 0.1 else claim["job_id"]
        body = {"hostname": host, **more}
        if self.chance.random() < 0.7:
            body["attempt"] = claim["attempt"]
        await self.call(self.machine, "POST", f"/v1/job/{job_id}/{word}", json=self.spoilt(body))

    async def heartbeat(self) -> None:
        await self._say("heartbeat", progress=self.chance.choice(ODD))

    async def complete(self) -> None:
        metrics = self.chance.choice((None, {}, {"loss": 0.5}, {"m" * 200: 1, "a\0": 2, "x": 1e308}))
        await self._say("complete", artifact_id=self.chance.choice((None, *self.artifacts[-5:])), metrics=metrics)

    async def fail(self) -> None:
        await self._say(
            "fail", error="boom", exit_code=self.chance.choice((1, None)), returned=self.chance.random() < 0.3
        )

    async def write_log(self) -> None:
        _, claim = self.chance.choice(self.claims[-5:]) if self.claims else ("", {"job_id": "x", "attempt": "y"})
        query = (
            f"attempt={claim['attempt']}&offset={self.chance.choice((0, 0, 5, -1))}&final={self.chance.randint(0, 1)}"
        )
        await self.call(self.machine, "POST", f"/v1/tasks/{claim['job_id']}/logs?{query}", data=b"hello\n")

    async def upload(self) -> None:
        data = bundle(metrics_jsonl=json.dumps({"loss": self.chance.randint(0, 3)}).encode())
        sha256 = hashlib.sha256(data).hexdigest() if self.chance.random() < 0.8 else self.chance.choice(WORDS[1:])
        ranges = {"Content-Range": f"bytes 0-{len(data) - 1}/{len(data) + self.chance.choice((0, 0, 10))}"}
        headers = ranges if self.chance.random() < 0.3 else {}
        answer = await self.call(self.machine, "PUT", f"/v1/model/{sha256}", data=data, headers=headers)
        if answer.status in (200, 201):
            self.artifacts.append(sha256)

    async def change_job(self) -> None:
        word = self.chance.choice(("cancel", "requeue"))
        root = self.chance.choice(("/v1/job", "/v1/jobs"))
        await self.call(self.operator, "POST", f"{root}/{self.job()}/{word}")

    async def sweep(self) -> None:
        name = self.chance.choice(("s-{lr}", "s", "%C3%B6/{lr}%20%25", "x{lr}/cancel", "", "nothing"))
        word = self.chance.choice(("", "", "/cancel", "/requeue"))
        await self.call(self.operator, "POST" if word else "GET", f"/v1/sweeps/{name}{word}")

    async def look(self) -> None:
        sha256 = self.chance.choice(self.artifacts)
        job, host = self.job(), self.chance.choice(HOSTS)
        path = self.chance.choice(
            (
                f"/v1/jobs/{job}",
                f"/v1/jobs/{job}/why",
                f"/v1/jobs/{job}/events",
                f"/v1/jobs?status={self.chance.choice(('claimed', 'running', 'orphaned,completed', 'x'))}&limit=2",
                "/v1/workers",
                f"/v1/workers/{host}",
                "/v1/status",
                "/v1/manifest",
                "/v1/sweeps",
                "/metrics",
                f"/v1/model/{sha256}",
                f"/v1/artifacts/{sha256[:6]}",
                f"/v1/artifacts?job={job}&limit=3",
            )
        )
        await self.call(self.operator, "GET", path)

    async def operate(self) -> None:
        host = self.chance.choice((*HOSTS, "nobody"))
        path = self.chance.choice(
            (
                f"/v1/workers/{host}/drain",
                f"/v1/workers/{host}/resume",
                f"/v1/workers/{host}/resume",
                "/v1/artifacts/gc?older_than_s=0&dry_run=1",
                f"/v1/artifacts/{self.chance.choice(self.artifacts)}/verify",
                "/v1/manifest/reload",
            )
        )
        await self.call(self.operator, "POST", path)


CALLS: dict[str, tuple[Callable[[Stranger], Awaitable[None]], int]] = {
    "apply": (Stranger.apply, 3),
    "submit": (Stranger.submit, 4),
    "claim": (Stranger.claim, 12),
    "heartbeat": (Stranger.heartbeat, 6),
    "complete": (Stranger.complete, 6),
    "fail": (Stranger.fail, 3),
    "write_log": (Stranger.write_log, 1),
    "upload": (Stranger.upload, 2),
    "change_job": (Stranger.change_job, 5),
    "sweep": (Stranger.sweep, 2),
    "look": (Stranger.look, 5),
    "operate": (Stranger.operate, 2),
    "connect": (Stranger.connect, 1),
    "tell": (Stranger.tell, 3),
}
