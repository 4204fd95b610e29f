"""A hub in the test's own loop with its gateway's relay, a worker and model servers as processes of their own. After
every turn of the hub and every step of the gateway all invariants of both are checked."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from tests.gateway.e2e.model_servers import WAIT_S, ModelServers
from tests.process_fleet import OSTLER, processes_with
from tests.protocol.hub import PromptServer

from ostler.client.embedded import to_toml
from ostler.core.check import check as check_fleet
from ostler.gateway import control
from ostler.gateway.core import events
from ostler.gateway.core.check import check as check_scheduler
from ostler.gateway.core.effects import Effect
from ostler.gateway.core.machine import Machine
from ostler.hub.gateway.instances import Instance
from ostler.hub.main import Hub
from ostler.hub.settings import load
from ostler.ledger.sqlite import SqliteLedger

SERVER = str(Path(__file__).parents[1] / "server.py")
OFFER = {"cpu_count": 8, "memory_gb": 16, "gpu_backend": "nvidia", "gpu_count": 1, "gpu_type": "A100", "vram_gb": 24}
CHAT = "/v1/chat/completions"
API_KEY = "key-of-a-caller"
Document = dict[str, Any]


def model(name: str, *more: str, vram: str = "16g", **options: Any) -> Document:
    """A model whose server is under the test's control; of two with 16 GiB one fits at a time."""
    cmd = [sys.executable, "-S", "-E", SERVER, "${PORT}", name, "${control}", *more]
    return {"cmd": cmd, "vram": vram, **options}


class Answer:
    def __init__(self, status: int, body: bytes, headers: Any) -> None:
        self.status = status
        self.body = body
        self.headers = headers

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        """What the model said."""
        return str(self.json["choices"][0]["message"]["content"])

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])

    @property
    def message(self) -> str:
        return str(self.json["error"]["message"])


async def first_data(answer: aiohttp.ClientResponse) -> bytes:
    """The first event of a stream. Comments come before it where the model takes longer to load."""
    while (line := await answer.content.readline()).startswith(b":") or line == b"\n":
        pass
    return line


class RunningGateway:
    def __init__(self, folder: Path, models: Document, settings: Document) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.models = models
        self.gateway_table = settings
        self.servers = ModelServers()
        self.broken: list[BaseException] = []
        """Invariants that did not hold; a test that leaves one here fails."""
        self.heard: list[control.ToHub] = []
        """What the relay has said to the hub."""
        self._port = 0
        self._gateway_port = 0
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("OSTLER_")}
        self.environment |= {"OSTLER_STATE_DIR": str(self.state), "NO_COLOR": "1"}

    async def open(self, offer: Document, workers: bool) -> None:
        self.state.mkdir(parents=True)
        self.servers_port = await self.servers.open()
        await self.start_hub()
        if workers:
            self.start_worker(offer)
            await self.until(self.worker_is_there, "the worker is there")

    # The hub

    def configure(self) -> Path:
        file = self.state / "ostler.toml"
        tables = {"models": self.models, "gateway": {"api_keys": [API_KEY], **self.gateway_table}}
        file.write_text(to_toml(tables).replace("${control}", str(self.servers_port)))
        return file

    async def start_hub(self) -> None:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self._port))
        listener.listen(128)
        listener.setblocking(False)
        self._port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self.environment["OSTLER_HUB"] = self.url
        self._ledger = SqliteLedger(self.state / "ostler.db")
        file = self.configure()
        listen = f"127.0.0.1:{self._gateway_port}"
        self.hub = Hub(self._ledger, self.state, settings=load(file), gateway=listen, config_file=file)
        self._watch()
        self._server = PromptServer(self.hub.app)
        self._serving = asyncio.create_task(self.hub.serve(self._server, listener))
        self.token = (self.state / "admin.token").read_text().strip()
        self.web = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=False))
        await self.gateway_listens()

    async def gateway_listens(self) -> None:
        await self.until(lambda: self.hub.gateway.listens_on, "the gateway listens")
        assert self.hub.gateway.listens_on is not None
        self._gateway_port = self.hub.gateway.listens_on[1]
        self.calls = f"http://127.0.0.1:{self._gateway_port}"

    async def stop_hub(self) -> None:
        self._server.stop()
        assert await self._serving == 0
        await self.web.close()
        self._ledger.close()

    def _watch(self) -> None:
        loop, scheduler, heard = self.hub.loop, self.hub.gateway.scheduler, self.hub.gateway._heard
        perform, step = loop._perform, scheduler.step

        async def performed(changes: Any, effects: Any) -> None:
            await perform(changes, effects)
            self._must(lambda: check_fleet(loop.fleet, loop.now(), after_pass=False))

        def stepped(event: events.Event, now: float) -> list[Effect]:
            found = step(event, now)
            assert isinstance(scheduler, Machine)
            if self.hub.gateway.room_seen == loop.fleet.index.changes:  # else it will hear of more room in a moment
                self._must(lambda: check_scheduler(scheduler, now, found))
            return found

        def hears(message: control.ToHub) -> None:
            self.heard.append(message)
            heard(message)

        loop._perform = performed
        scheduler.step = stepped  # type: ignore[method-assign]
        self.hub.gateway.link._heard = hears

    def _must(self, check: Any) -> None:
        try:
            check()
        except Exception as error:
            self.broken.append(error)

    # Workers

    def start_worker(self, offer: Document | None = None, name: str = "box", drain_s: float = 0.1) -> None:
        file = self.folder / f"{name}.toml"
        if offer is not None:
            file.write_text(to_toml(offer))
        arguments = ("worker", "--name", name, "--offer", str(file), "--drain-seconds", str(drain_s))
        self._workers[name] = self._start(arguments, self.folder / f"{name}.log")

    def _start(self, arguments: tuple[str, ...], file: Path) -> "subprocess.Popen[bytes]":
        with file.open("ab") as log:
            return subprocess.Popen(
                [*OSTLER, *arguments], env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def kill_worker(self, name: str = "box") -> None:
        worker = self._workers.pop(name)
        worker.kill()
        worker.wait(WAIT_S)

    def kill_supervisors(self, name: str = "box") -> None:
        for process in processes_with(str(self.state / "workers" / name)):
            if "supervisor" in " ".join(process.cmdline()):
                process.kill()

    def tell_worker_to_leave(self, name: str = "box") -> None:
        """SIGTERM."""
        self._workers[name].terminate()

    async def worker_has_left(self, name: str = "box") -> None:
        assert await asyncio.to_thread(self._workers.pop(name).wait, WAIT_S) == 0

    async def worker_is_there(self) -> bool:
        workers = self.hub.loop.fleet.workers.values()
        return any(worker.session and worker.slots is not None for worker in workers)

    async def workers_are_there(self, *names: str) -> None:
        def such() -> bool:
            workers = self.hub.loop.fleet.workers
            return all(name in workers and workers[name].is_open for name in names)

        await self.until(such, f"{names} are there")

    # Calls

    async def ask(
        self, method: str, path: str, body: Any = None, token: str | None = None, data: bytes | None = None
    ) -> Answer:
        """On the gateway's port."""
        async with self._request(method, self.calls + path, body, token, data) as answer:
            return Answer(answer.status, await answer.read(), answer.headers)

    async def ask_hub(self, method: str, path: str, body: Any = None, token: str | None = None) -> Answer:
        async with self._request(method, self.url + path, body, token, None) as answer:
            return Answer(answer.status, await answer.read(), answer.headers)

    def _request(self, method: str, url: str, body: Any, token: str | None, data: bytes | None) -> Any:
        headers = {"Authorization": f"Bearer {self.token if token is None else token}"}
        if body is not None:
            data = json.dumps(body).encode()
        return self.web.request(method, url, data=data, headers=headers, timeout=aiohttp.ClientTimeout(total=WAIT_S))

    def call(self, model: str, tag: str = "", **more: Any) -> "asyncio.Task[Answer]":
        """A chat, answered at once."""
        return asyncio.create_task(self.ask("POST", CHAT, {"model": model, "tag": tag, "messages": [], **more}))

    def hold(self, model: str, tag: str, **more: Any) -> "asyncio.Task[Answer]":
        """A chat that its server answers when `servers` says so."""
        return asyncio.create_task(self.ask("POST", CHAT, {"model": model, "hold": tag, "messages": [], **more}))

    def stream(self, model: str, tag: str) -> Any:
        """The response, to be read piece by piece; leaving it hangs up."""
        body = {"model": model, "hold": tag, "stream": True, "messages": []}
        return self._request("POST", self.calls + CHAT, body, None, None)

    async def answered(self, *calls: "asyncio.Task[Answer]") -> list[Answer]:
        async with asyncio.timeout(WAIT_S):
            return list(await asyncio.gather(*calls))

    async def remembered(self, *models: str) -> Answer:
        """The last calls, as soon as the newest are of these models: the relay tells the hub of one when it is answered."""

        async def such() -> Answer | None:
            answer = await self.ask("GET", "/api/activity")
            newest = [one["model"] for one in answer.json["activity"][: len(models)]]
            return answer if newest == list(models) else None

        found: Answer = await self.until(such, f"the last calls were of {models}")
        return found

    async def queue(self) -> list[Document]:
        found: list[Document] = (await self.ask("GET", "/api/queue")).json["queue"]
        return found

    async def queued(self, *models: str) -> None:
        """Until just these requests wait, in this order."""

        async def such() -> bool:
            return [place["model"] for place in await self.queue()] == list(models)

        await self.until(such, f"{models} wait")

    def instance(self, name: str) -> Instance:
        """The foremost process of this model."""
        found = self.hub.gateway.instances.foremost(name)
        assert found is not None, f"{name} has no process"
        return found

    async def is_listed(self, name: str) -> None:
        async def such() -> bool:
            return name in {one["name"] for one in (await self.ask_hub("GET", "/v1/models")).json["models"]}

        await self.until(such, f"{name} is listed")

    async def state_of(self, name: str) -> str:
        models = (await self.ask_hub("GET", "/v1/models")).json["models"]
        return str(next(one["state"] for one in models if one["name"] == name))

    async def is_state(self, name: str, state: str) -> None:
        async def such() -> bool:
            return await self.state_of(name) == state

        await self.until(such, f"{name} is {state}")

    async def until(self, holds: Any, what: str) -> Any:
        """What the hub shows is looked at again and again; nothing tells a caller when it changes."""
        deadline = asyncio.get_running_loop().time() + WAIT_S
        while True:
            found = holds()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return found
            assert asyncio.get_running_loop().time() < deadline, f"never: {what}"
            await asyncio.sleep(0.02)

    # Jobs

    async def submit(self, name: str, *command: str, **spec: Any) -> str:
        answer = await self.ask_hub("POST", "/v1/jobs", {"name": name, "command": list(command), **spec})
        assert answer.status == 201, answer.body
        return str(answer.json["id"])

    async def job(self, job_id: str) -> Document:
        found: Document = (await self.ask_hub("GET", f"/v1/jobs/{job_id}")).json
        return found

    async def job_is(self, job_id: str, state: str) -> None:
        async def such() -> bool:
            return bool((await self.job(job_id))["state"] == state)

        await self.until(such, f"{job_id} is {state}")

    # Ends

    async def clear(self) -> None:
        """For the next test: nothing is loaded, and nothing of the last one is remembered."""
        assert (await self.ask("POST", "/api/models/unload")).status == 200
        self.hub.gateway.errors.clear()
        self.servers.forget()
        self.heard.clear()
        broken, self.broken = self.broken, []
        assert not broken, broken

    async def close(self) -> None:
        for worker in self._workers.values():
            with contextlib.suppress(ProcessLookupError):
                worker.send_signal(signal.SIGTERM)
        for worker in self._workers.values():
            await asyncio.to_thread(worker.wait, WAIT_S)
        with contextlib.suppress(Exception):
            await self.stop_hub()
        self.servers.close()
        for process in processes_with(str(self.state)):
            process.kill()


class ProcessGateway(RunningGateway):
    """The same with a hub that is a process of its own, to be killed."""

    async def start_hub(self) -> None:
        self.configure()
        where = self.state / "hub.url"
        where.unlink(missing_ok=True)
        self._log = self.folder / f"hub.{len(list(self.folder.glob('hub.*')))}.log"
        arguments = ("hub", "--port", str(self._port), "--gateway-port", str(self._gateway_port))
        self._process = self._start(arguments, self._log)
        self.web = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        await self.until(lambda: where.exists() and where.read_text(), "the hub listens")
        self.url = where.read_text().strip()
        self.token = (self.state / "admin.token").read_text().strip()
        self.environment["OSTLER_HUB"] = self.url
        self._port = int(self.url.rpartition(":")[2])
        pattern = re.compile(r"the gateway listens on (http://\S+:(\d+))/v1")
        await self.until(lambda: pattern.search(self._log.read_text()), "the gateway listens")
        found = pattern.search(self._log.read_text())
        assert found is not None
        self.calls, self._gateway_port = found[1], int(found[2])

    @property
    def pid(self) -> int:
        return self._process.pid

    async def kill_hub(self) -> None:
        self._process.kill()
        await asyncio.to_thread(self._process.wait, WAIT_S)
        await self.web.close()

    async def stop_hub(self) -> None:
        self._process.terminate()
        await asyncio.to_thread(self._process.wait, WAIT_S)
        await self.web.close()

    async def worker_is_there(self) -> bool:
        workers = (await self.ask_hub("GET", "/v1/workers")).json["workers"]
        return any(one["status"] != "offline" and one["total_slots"] for one in workers)


@asynccontextmanager
async def running_gateway(
    folder: Path,
    models: Iterable[Document] | Document,
    offer: Document | None = None,
    workers: bool = True,
    kind: type[RunningGateway] = RunningGateway,
    **settings: Any,
) -> AsyncIterator[RunningGateway]:
    """`models` by name, or with their names as the server's."""
    named = models if isinstance(models, dict) else {one["cmd"][5]: one for one in models}
    made = kind(folder, named, settings)
    try:
        await made.open(OFFER | (offer or {}), workers)
        yield made
        broken = made.broken
        assert not broken, broken
    finally:
        await made.close()
