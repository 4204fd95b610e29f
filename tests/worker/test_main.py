"""The worker as a program of its own: signals, restarts, exit codes."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.worker.conftest import eventually
from tests.worker.scripted_hub import TOKEN, ScriptedHub, assignment

PROGRAM = """
import json, sys
from pathlib import Path
from ostler.worker.main import WorkerOptions, run

options = json.loads(sys.argv[1])
for name in ("state_dir", "offer"):
    if options.get(name):
        options[name] = Path(options[name])
sys.exit(run(WorkerOptions(**options)))
"""
OFFER = 'cpu_count = 2\nmemory_gb = 4\n[labels]\nrack = "r1"\n'


class Programs:
    """Workers started by a test; whatever it leaves running is stopped after it."""

    def __init__(self, hub: ScriptedHub, folder: Path) -> None:
        self.hub = hub
        self.folder = folder
        (folder / "offer.toml").write_text(OFFER)
        self.started: list[asyncio.subprocess.Process] = []

    async def start(self, **options: Any) -> asyncio.subprocess.Process:
        whole = {
            "hub": self.hub.url,
            "token": TOKEN,
            "name": "w1",
            "state_dir": str(self.folder / "state"),
            "offer": str(self.folder / "offer.toml"),
            **options,
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PROGRAM, json.dumps(whole), stderr=asyncio.subprocess.PIPE
        )
        self.started.append(process)
        return process

    @property
    def supervisor(self) -> int:
        return int((self.folder / "state/workers/w1/supervisor.lock").read_text())

    async def stop(self) -> None:
        for process in self.started:
            if process.returncode is None:
                process.kill()
                await process.wait()
        for lock in self.folder.glob("*/workers/*/supervisor.lock"):
            pid = int(lock.read_text())
            if is_alive(pid):
                os.kill(pid, signal.SIGTERM)
                await eventually(lambda pid=pid: not is_alive(pid))


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
async def programs(hub: ScriptedHub, tmp_path: Path) -> AsyncIterator[Programs]:
    found = Programs(hub, tmp_path)
    yield found
    await found.stop()


async def ended(process: asyncio.subprocess.Process) -> tuple[int, str]:
    _, errors = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return process.returncode, errors.decode()


async def test_a_worker_offers_what_its_file_says_and_its_labels(hub: ScriptedHub, programs: Programs) -> None:
    await programs.start(labels={"zone": "a"})
    register = await hub.next("register")
    assert register["id"] == "w1"
    assert register["capabilities"]["cpu_count"] == 2
    assert register["capabilities"]["labels"] == {"rack": "r1", "zone": "a"}
    assert len(register["boot_id"]) == 32
    slots = (await hub.next("ready_for_work"))["slots"]
    assert (slots["batch_total"], slots["service_total"]) == (2, 2)


async def test_without_a_file_the_machine_is_looked_at(hub: ScriptedHub, programs: Programs) -> None:
    await programs.start(offer=None, slots=7, service_slots=0)
    capabilities = (await hub.next("register"))["capabilities"]
    assert capabilities["cpu_count"] > 0
    assert capabilities["memory_gb"] > 0
    assert capabilities["python"]
    assert (await hub.next("ready_for_work"))["slots"]["batch_total"] == 7


async def test_sigterm_of_an_idle_worker_ends_it_and_its_supervisor(hub: ScriptedHub, programs: Programs) -> None:
    process = await programs.start()
    await hub.next("ready_for_work")
    supervisor = programs.supervisor
    process.send_signal(signal.SIGTERM)
    code, errors = await ended(process)
    assert code == 0, errors
    assert "Traceback" not in errors
    await eventually(lambda: not is_alive(supervisor))
    await hub.next("heartbeat")  # of the connection
    assert (await hub.next("heartbeat"))["draining"]


async def test_a_drain_lets_batch_tasks_finish_stops_services_and_takes_nothing_new(
    hub: ScriptedHub, programs: Programs, tmp_path: Path
) -> None:
    process = await programs.start()
    await hub.next("ready_for_work")
    gate = tmp_path / "gate"
    await hub.assign("batch", "sh", "-c", f"while [ ! -e {gate} ]; do sleep 0.02; done")
    await hub.assign("service", "sleep", "600", type="service")
    await hub.next("job_accepted")
    await hub.next("job_accepted")
    process.send_signal(signal.SIGINT)
    service = await hub.next("job_result")
    assert (service["attempt"], service["state"], service["fault"]) == ("service", "returned", "drain")
    await hub.assign("late", "true")
    late = await hub.next("job_result")
    assert (late["attempt"], late["state"], late["fault"]) == ("late", "returned", "drain")
    gate.touch()
    batch = await hub.next("job_result")
    assert (batch["attempt"], batch["state"]) == ("batch", "succeeded")
    assert (await ended(process))[0] == 0


async def test_what_does_not_finish_within_the_drain_is_returned(hub: ScriptedHub, programs: Programs) -> None:
    process = await programs.start(drain_seconds=0.2)
    await hub.next("ready_for_work")
    await hub.assign("a1", "sleep", "600")
    await hub.next("job_accepted")
    process.send_signal(signal.SIGTERM)
    result = await hub.next("job_result")
    assert (result["state"], result["fault"]) == ("returned", "drain")
    assert (await ended(process))[0] == 0


async def test_a_second_signal_stops_tasks_now(hub: ScriptedHub, programs: Programs) -> None:
    process = await programs.start()
    await hub.next("ready_for_work")
    await hub.assign("a1", "sleep", "600")
    await hub.next("job_accepted")
    process.send_signal(signal.SIGTERM)
    await hub.next("heartbeat")  # of the connection
    assert (await hub.next("heartbeat"))["draining"]
    process.send_signal(signal.SIGTERM)
    result = await hub.next("job_result")
    assert (result["state"], result["fault"]) == ("returned", "drain")
    assert (await ended(process))[0] == 0


async def test_tasks_outlive_a_killed_worker_and_the_next_one_takes_them_back(
    hub: ScriptedHub, programs: Programs, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    process = await programs.start()
    await hub.next("register")
    waits = f"echo $$; while [ ! -e {gate} ]; do sleep 0.02; done"
    await hub.assign("a1", "sh", "-c", waits, gpu_count=1, devices=[0])
    await hub.send_batch(
        ("job_assign", assignment("a2", "sh", "-c", "echo done; exit 4")), ("job_assign", assignment("a3", "true"))
    )
    hub.acknowledges.discard("job_result")
    await hub.next("job_result")
    await hub.next("job_result")
    process.kill()
    await process.wait()
    hub.acknowledges.add("job_result")
    await programs.start()
    register = await hub.next("register")
    held = {task["attempt"]: task.get("state", "running") for task in register["active_tasks"]}
    assert held == {"a1": "running", "a2": "failed", "a3": "succeeded"}
    again = [await hub.next("job_result"), await hub.next("job_result")]
    assert {result["attempt"]: result["exit_code"] for result in again} == {"a2": 4, "a3": 0}
    await hub.assign("a4", "true", gpu_count=1, devices=[0])
    assert (await hub.next("job_result"))["state"] == "returned"
    gate.touch()
    result = await hub.next("job_result")
    assert (result["attempt"], result["state"]) == ("a1", "succeeded")
    assert hub.logs["job-a2", "a2"] == b"done\n"


async def test_a_task_whose_supervisor_was_killed_is_handed_back_as_the_machines_fault(
    hub: ScriptedHub, programs: Programs, tmp_path: Path
) -> None:
    await programs.start()
    await hub.next("ready_for_work")
    started = tmp_path / "started"
    await hub.assign("a1", "sh", "-c", f"touch {started}; sleep 600")
    await eventually(started.exists)
    os.kill(programs.supervisor, signal.SIGKILL)
    result = await hub.next("job_result")
    assert (result["state"], result["fault"]) == ("returned", "worker")
    await hub.assign("a2", "true")
    assert (await hub.next("job_result"))["state"] == "succeeded"


async def test_a_second_worker_with_the_same_name_and_folder_refuses_to_start(
    hub: ScriptedHub, programs: Programs
) -> None:
    await programs.start()
    await hub.next("register")
    code, errors = await ended(await programs.start())
    assert code == 1
    assert "a worker named w1 runs on this machine already" in errors
    assert hub.count("register") == 1


async def test_a_worker_whose_name_is_taken_says_so_and_ends_with_its_tasks(
    hub: ScriptedHub, programs: Programs
) -> None:
    process = await programs.start()
    await hub.next("ready_for_work")
    await hub.assign("a1", "sleep", "600")
    await hub.next("job_accepted")
    supervisor = programs.supervisor
    await hub.drop(code=4001)
    code, errors = await ended(process)
    assert code == 4
    assert "another worker uses this name" in errors
    assert "Traceback" not in errors
    await eventually(lambda: not is_alive(supervisor))


@pytest.mark.parametrize("status", [401, 403])
async def test_a_worker_that_is_not_let_in_says_so(hub: ScriptedHub, programs: Programs, status: int) -> None:
    hub.refuses_with = status
    code, errors = await ended(await programs.start())
    assert code == 4
    assert "did not let this worker in" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("options", "said"),
    [({"name": "../x"}, "cannot be a worker's name"), ({"offer": "/nowhere.toml"}, "cannot be read")],
)
async def test_wrong_usage_is_one_sentence(programs: Programs, options: dict[str, Any], said: str) -> None:
    code, errors = await ended(await programs.start(**options))
    assert code == 2
    assert said in errors
    assert "Traceback" not in errors


async def test_no_token_of_the_worker_reaches_a_task(hub: ScriptedHub, programs: Programs) -> None:
    os.environ["SOMETHING"] = f"Bearer {TOKEN}"
    try:
        await programs.start()
    finally:
        del os.environ["SOMETHING"]
    await hub.next("ready_for_work")
    await hub.assign("a1", "env")
    await hub.next("job_result")
    assert b"OSTLER_TASK_ID=job-a1" in hub.logs["job-a1", "a1"]
    assert TOKEN.encode() not in hub.logs["job-a1", "a1"]
