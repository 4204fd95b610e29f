"""The worker over a real WebSocket, with real processes, against a hub that follows a script."""

import asyncio
from pathlib import Path

import pytest
from tests.worker.conftest import RunningWorker, eventually, running_worker
from tests.worker.scripted_hub import TOKEN, ScriptedHub, assignment

from ostler.domain.errors import NotAllowed
from ostler.domain.worker import Capabilities, DeviceInfo
from ostler.runtime.base import Launch
from ostler.wire.messages import JobAssign
from ostler.worker import agent as agent_module
from ostler.worker.connection import TakenOver
from ostler.worker.orders import Order
from ostler.worker.state import AHEAD


async def test_a_worker_registers_announces_its_slots_and_asks_for_work(hub: ScriptedHub, tmp_path: Path) -> None:
    async with running_worker(hub.url, tmp_path / "w1"):
        await hub.next("ready_for_work")
    (first, register), (second, beat), (third, ready) = hub.messages[:3]
    assert (first, second, third) == ("register", "heartbeat", "ready_for_work")
    assert (register["id"], register["boot_id"]) == ("w1", "boot")
    assert register["protocol"] == {"batch": True, "ahead": AHEAD, "beside": True, "hints": True, "lines": True}
    assert register["capabilities"]["cpu_count"] == 4
    assert ready["slots"] == {"batch_total": 4, "batch_in_use": 0, "service_total": 1, "service_in_use": 0}
    assert beat["slots"] == ready["slots"]
    assert hub.authorizations == [f"Bearer {TOKEN}"]


async def test_a_task_runs_is_accepted_and_its_result_is_told(hub: ScriptedHub, worker: RunningWorker) -> None:
    await hub.assign("a1", "sleep", "0.1")
    assert await hub.next("job_accepted") == {"task_id": "job-a1", "attempt": "a1"}
    result = await hub.next("job_result")
    assert result.pop("run_s") > 0
    assert result.pop("peak_memory_mib") > 0
    assert result == {"task_id": "job-a1", "attempt": "a1", "state": "succeeded", "exit_code": 0}
    assert hub.requests == []  # no output, no request


@pytest.mark.parametrize(
    ("command", "state", "exit_code", "error"),
    [
        (["sh", "-c", "exit 3"], "failed", 3, "exit code 3"),
        (["sh", "-c", "kill -SEGV $$"], "failed", 139, "exit code 139 (SIGSEGV)"),
        (
            ["no-such-program-anywhere"],
            "failed",
            127,
            "program 'no-such-program-anywhere' not found on this worker's PATH",
        ),
    ],
)
async def test_a_failure_says_what_it_was(
    hub: ScriptedHub, worker: RunningWorker, command: list[str], state: str, exit_code: int, error: str
) -> None:
    await hub.assign("a1", *command)
    result = await hub.next("job_result")
    assert (result["state"], result["exit_code"], result["error"]) == (state, exit_code, error)


async def test_many_assignments_in_one_frame_all_run(hub: ScriptedHub, worker: RunningWorker) -> None:
    await hub.send_batch(*(("job_assign", assignment(f"a{n}", "true")) for n in range(50)))
    states = [(await hub.next("job_result"))["state"] for _ in range(50)]
    assert states == ["succeeded"] * 50
    assert any(isinstance(frame, list) for frame in hub.frames)
    assert not isinstance(hub.frames[0], list)


async def test_what_one_frame_asks_for_is_begun_before_the_next_is_read(
    hub: ScriptedHub, worker: RunningWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []
    launch, understand = worker.runtime.launch, agent_module.understand

    async def launched(what: Launch) -> None:
        happened.append(f"{what.attempt} launched")
        await launch(what)

    def understood(message: JobAssign) -> Order:
        happened.append(f"{message.attempt} read")
        return understand(message)

    monkeypatch.setattr(worker.runtime, "launch", launched)
    monkeypatch.setattr(agent_module, "understand", understood)
    # Written without a pause, so that both are there when the worker reads.
    await asyncio.gather(*(hub.send_batch(("job_assign", assignment(name, "true"))) for name in ("a1", "a2")))
    await hub.next("job_result")
    await hub.next("job_result")
    assert happened == ["a1 read", "a1 launched", "a2 read", "a2 launched"]


async def test_the_same_assignment_twice_runs_once(hub: ScriptedHub, worker: RunningWorker, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    twice = ("job_assign", assignment("a1", "sh", "-c", f"echo x >> {ran}"))
    await hub.send_batch(twice, twice)
    await hub.next("job_result")
    await hub.send_batch(twice, ("job_assign", assignment("a2", "true")))
    await hub.next("job_result")
    assert ran.read_text() == "x\n"


async def test_a_cancelled_task_is_stopped_with_all_its_processes(
    hub: ScriptedHub, worker: RunningWorker, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    await hub.assign("a1", "sh", "-c", f"sleep 600 & touch {started}; wait")
    await hub.next("job_accepted")
    await eventually(started.exists)
    await hub.send("job_cancel", task_id="job-a1", attempt="a1", reason="by ann", grace_seconds=5)
    result = await hub.next("job_result")
    assert (result["state"], result["error"]) == ("cancelled", "by ann")


async def test_a_task_that_ignores_sigterm_is_killed_after_the_grace(hub: ScriptedHub, worker: RunningWorker) -> None:
    await hub.assign("a1", "sh", "-c", "trap '' TERM; while :; do sleep 0.05; done")
    await hub.next("job_accepted")
    await hub.send("job_cancel", task_id="job-a1", attempt="a1", reason="", grace_seconds=0.3)
    assert (await hub.next("job_result"))["state"] == "cancelled"


async def test_a_cancel_of_what_is_not_here_is_answered(hub: ScriptedHub, worker: RunningWorker) -> None:
    await hub.send("job_cancel", task_id="ghost", attempt="gone", reason="", grace_seconds=1)
    result = await hub.next("job_result")
    assert (result["task_id"], result["attempt"], result["state"]) == ("ghost", "gone", "cancelled")


async def test_a_budget_is_kept_by_the_worker_itself(hub: ScriptedHub, worker: RunningWorker) -> None:
    await hub.assign("a1", "sleep", "600", remaining_time=200_000_000)
    result = await hub.next("job_result")
    assert (result["state"], result["error"]) == ("failed", "max_runtime")


async def test_results_are_kept_and_sent_after_every_registration_until_acknowledged(
    hub: ScriptedHub, worker: RunningWorker
) -> None:
    hub.acknowledges.discard("job_result")
    await hub.assign("a1", "true")
    first = await hub.next("job_result")
    for _ in range(2):
        await hub.drop()
        register = await hub.next("register")
        assert register["active_tasks"] == [{"task_id": "job-a1", "attempt": "a1", "state": "succeeded"}]
        assert await hub.next("job_result") == first
        await hub.next("ready_for_work")
    await hub.send("ack", of="job_result", task_id="job-a1", attempt="a1")
    await hub.drop()
    assert "active_tasks" not in await hub.next("register")


async def test_tasks_run_on_while_the_hub_is_away(hub: ScriptedHub, worker: RunningWorker, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    await hub.assign("a1", "sh", "-c", f"echo before; while [ ! -e {gate} ]; do sleep 0.02; done; echo after")
    await hub.next("job_accepted")
    await hub.stop()
    gate.touch()
    await eventually(lambda: not worker.agent._state.held)
    await hub.start()
    register = await hub.next("register")
    assert [(task["attempt"], task["state"]) for task in register["active_tasks"]] == [("a1", "succeeded")]
    assert (await hub.next("job_result"))["state"] == "succeeded"
    assert hub.logs["job-a1", "a1"] == b"before\nafter\n"


async def test_a_running_task_is_reported_after_a_reconnect_and_not_restarted(
    hub: ScriptedHub, worker: RunningWorker, tmp_path: Path
) -> None:
    await hub.assign("a1", "sleep", "600")
    await hub.next("job_accepted")
    await hub.drop()
    register = await hub.next("register")
    [task] = register["active_tasks"]
    assert (task["task_id"], task["attempt"]) == ("job-a1", "a1")
    assert task["started_at"].endswith("Z")
    assert "a1" in worker.agent._state.held


async def test_heartbeats_tell_slots_offer_and_tasks(hub: ScriptedHub, tmp_path: Path) -> None:
    async with running_worker(hub.url, tmp_path / "w1", heartbeat_s=0.1):
        await hub.next("register")
        await hub.assign("a1", "sleep", "600")
        await hub.next("job_accepted")
        beat = await hub.next("heartbeat")
        while not beat.get("active_tasks"):
            beat = await hub.next("heartbeat")
    assert beat["worker_id"] == "w1"
    assert beat["slots"]["batch_in_use"] == 1
    assert beat["capability"]["cpu_count"] == 4
    assert beat["sent_at"].endswith("Z")


async def test_a_hub_that_says_nothing_is_left_and_found_again(hub: ScriptedHub, tmp_path: Path) -> None:
    hub.acknowledges.clear()
    async with running_worker(hub.url, tmp_path / "w1", heartbeat_s=0.1, silence_s=0.4):
        await hub.next("register")
        await hub.next("register")
    assert len(hub.sockets) >= 2


async def test_a_hub_that_acknowledges_is_not_left(hub: ScriptedHub, tmp_path: Path) -> None:
    async with running_worker(hub.url, tmp_path / "w1", heartbeat_s=0.1, silence_s=0.4):
        await hub.until(lambda: hub.count("heartbeat") >= 10)
    assert hub.count("register") == 1


async def test_nonsense_from_the_hub_does_not_end_the_connection(hub: ScriptedHub, worker: RunningWorker) -> None:
    await hub.sockets[-1].send_str("not json")
    await hub.send("prewarm_hint", task_id="t", snapshot_id="s")
    await hub.send("no_work")
    await hub.send("ack", of="register")
    await hub.assign("a1", "true")
    assert (await hub.next("job_result"))["state"] == "succeeded"
    assert hub.count("register") == 1


async def test_a_spec_without_a_command_fails_its_task(hub: ScriptedHub, worker: RunningWorker) -> None:
    await hub.assign("a1")
    result = await hub.next("job_result")
    assert (result["state"], result["error"]) == ("failed", "the spec has no command")


@pytest.mark.parametrize("attempt", ["../../etc", "a b", "x" * 65])
async def test_an_attempt_that_cannot_be_a_folder_is_refused(
    hub: ScriptedHub, worker: RunningWorker, attempt: str
) -> None:
    await hub.assign(attempt, "true")
    assert (await hub.next("job_result"))["state"] == "failed"


async def test_a_worker_whose_name_was_taken_does_not_come_back(hub: ScriptedHub, worker: RunningWorker) -> None:
    await hub.drop(code=4001)
    assert worker.connecting is not None
    with pytest.raises(TakenOver):
        await asyncio.wait_for(worker.connecting, 60)


@pytest.mark.parametrize("status", [401, 403])
async def test_a_worker_that_is_not_let_in_does_not_come_back(hub: ScriptedHub, tmp_path: Path, status: int) -> None:
    hub.refuses_with = status
    async with running_worker(hub.url, tmp_path / "w1") as worker:
        assert worker.connecting is not None
        with pytest.raises(NotAllowed, match=str(status)):
            await asyncio.wait_for(worker.connecting, 60)


async def test_a_hub_that_is_broken_for_a_while_is_tried_again(hub: ScriptedHub, tmp_path: Path) -> None:
    hub.refuses_with = 502
    async with running_worker(hub.url, tmp_path / "w1"):
        await hub.until(lambda: hub.authorizations)
        hub.refuses_with = 0
        await hub.next("register")


async def test_a_token_of_its_own_is_kept_and_used_and_a_stale_one_gives_way(hub: ScriptedHub, tmp_path: Path) -> None:
    hub.gives_token = "own-token"
    async with running_worker(hub.url, tmp_path / "w1"):
        await hub.next("ready_for_work")
        await hub.drop()
        await hub.next("ready_for_work")
    assert hub.authorizations == [f"Bearer {TOKEN}", "Bearer own-token"]
    kept = tmp_path / "w1" / "worker.token"
    assert kept.read_text().split() == ["own-token", hub.url]
    assert kept.stat().st_mode & 0o777 == 0o600
    hub.unknown_tokens = {"own-token"}
    async with running_worker(hub.url, tmp_path / "w1"):
        await hub.next("ready_for_work")
    assert hub.authorizations[2:] == ["Bearer own-token", f"Bearer {TOKEN}"]


async def test_a_worker_that_was_stopped_before_it_said_that_it_keeps_a_token_says_so_when_it_is_back(
    hub: ScriptedHub, tmp_path: Path
) -> None:
    (tmp_path / "w1").mkdir()
    (tmp_path / "w1" / "worker.token").write_text(f"own-token\n{hub.url}\n")
    async with running_worker(hub.url, tmp_path / "w1"):
        await hub.until(lambda: hub.renewed)
        await hub.drop()
        await hub.next("ready_for_work")
    assert hub.renewed == ["Bearer own-token"], "once it was heard there is no more to say"


async def test_a_token_of_another_hub_is_not_shown_to_this_one(hub: ScriptedHub, tmp_path: Path) -> None:
    (tmp_path / "w1").mkdir()
    (tmp_path / "w1" / "worker.token").write_text("foreign\nhttp://elsewhere:7600\n")
    async with running_worker(hub.url, tmp_path / "w1"):
        await hub.next("register")
    assert hub.authorizations == [f"Bearer {TOKEN}"]


async def test_a_gpu_task_sees_its_gpu_and_a_second_whole_one_is_handed_back(hub: ScriptedHub, tmp_path: Path) -> None:
    devices = [DeviceInfo(index=0, uuid="GPU-aa", vram_gb=8), DeviceInfo(index=1, uuid="GPU-bb", vram_gb=8)]
    offer = Capabilities(gpu_backend="nvidia", gpu_count=2, devices=devices, cpu_count=4)
    async with running_worker(hub.url, tmp_path / "w1", capabilities=offer):
        await hub.next("register")
        await hub.assign("a1", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; sleep 600", gpu_count=1, devices=[1])
        await hub.send("log_request", task_id="job-a1", attempt="a1", offset=0, follow=True)
        await hub.until(lambda: hub.logs["job-a1", "a1"] == b"GPU-bb\n")
        await hub.assign("a2", "true", gpu_count=1, devices=[1])
        result = await hub.next("job_result")
        assert (result["attempt"], result["state"]) == ("a2", "returned")
        assert "fault" not in result
        await hub.assign("a3", "true", gpu_count=1, devices=[0])
        assert (await hub.next("job_result"))["state"] == "succeeded"


async def test_a_task_finds_its_folders_and_a_checkpoint_outlives_the_attempt(
    hub: ScriptedHub, worker: RunningWorker
) -> None:
    script = (
        'cd "$OSTLER_CHECKPOINT" && cat step 2>/dev/null; echo $OSTLER_ATTEMPT > step; ls -d "$OSTLER_OUT" >/dev/null'
        "; exit 3"
    )
    for attempt in ("a1", "a2"):
        await hub.assign(attempt, "sh", "-c", script, id="job")
        assert (await hub.next("job_result"))["exit_code"] == 3
    assert hub.logs["job", "a2"] == b"a1\n"


async def test_an_empty_checkpoint_goes_with_the_task(hub: ScriptedHub, worker: RunningWorker, tmp_path: Path) -> None:
    await hub.assign("a1", "true")
    await hub.next("job_result")
    await eventually(lambda: not (tmp_path / "w1/checkpoints/job-a1").exists())


async def test_results_do_not_wait_for_others_while_fewer_tasks_than_results_are_here(
    hub: ScriptedHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "GATHER_S", 3600.0)
    async with running_worker(hub.url, tmp_path, batch_slots=1):
        await hub.next("register")
        await hub.assign("a1", "true")
        await hub.assign("a2", "true", after=["a1"])
        await hub.assign("a3", "sleep", "1000", after=["a2"])
        await hub.assign("a4", "true", after=["a3"])
        assert {(await hub.next("job_result"))["attempt"] for _ in range(2)} == {"a1", "a2"}
