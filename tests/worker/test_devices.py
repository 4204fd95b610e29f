"""GPUs: free only when the task has left them as they were; and what others hold on them."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from tests.worker.conftest import RunningWorker, eventually, running_worker
from tests.worker.scripted_hub import ScriptedHub
from tests.worker.test_core import do, ended, order, sent, worker

from ostler.domain.worker import Capabilities, DeviceInfo
from ostler.runtime.base import Ended, Held
from ostler.runtime.probe import usage
from ostler.runtime.probe.usage import DeviceUsage, ProcessUsage
from ostler.wire.messages import Heartbeat, JobResult
from ostler.worker import devices
from ostler.worker.events import (
    Assigned,
    AwaitRelease,
    BeatDue,
    CollectOutcome,
    Connected,
    ConnectionLost,
    DevicesReleased,
    DevicesSeen,
    Launched,
    OutcomeCollected,
    ProcessEnded,
    TookBack,
)
from ostler.worker.gpus import Gpus, Probe
from ostler.worker.orders import Facts

TWO = Capabilities(
    gpu_backend="nvidia",
    gpu_count=2,
    cpu_count=4,
    devices=[DeviceInfo(index=0, vram_gb=8), DeviceInfo(index=1, vram_gb=8)],
)


def device(index: int = 0, used: int = 500, *processes: ProcessUsage) -> DeviceUsage:
    return DeviceUsage(index=index, used_mib=used, processes=list(processes))


def process(pid: int, mib: int, attempt: str = "", name: str = "python", **more: Any) -> ProcessUsage:
    return ProcessUsage(pid=pid, mib=mib, attempt=attempt, name=name, **more)


# --- what was left ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "text"),
    [
        (device(0, 500), ""),
        (device(0, 564), ""),
        (device(0, 565), "65 MiB still held after task T ended, by no process that can be seen"),
        (device(0, 2500, process(7, 1900, "a1")), "2000 MiB still held after task T ended, by pid 7 (python)"),
        (
            device(0, 2500, process(7, 900, "a1"), process(8, 900, "a1", name="ray")),
            "2000 MiB still held after task T ended, by pid 7 (python), pid 8 (ray)",
        ),
        (
            device(0, 2500, process(7, 2000, name="", known=False)),
            "2000 MiB still held after task T ended, by pid 7, a process that cannot be seen from here",
        ),
        (
            device(0, 2500, process(7, 2000, known=False)),
            "2000 MiB still held after task T ended, by pid 7 (python)",
        ),
        (device(0, 2500, process(9, 2000)), ""),
        (device(0, 2500, process(9, 2000, "another-workers")), ""),
        (device(1, 9999), ""),
    ],
    ids=[
        "clean",
        "nearly",
        "memory alone",
        "culprit",
        "culprits",
        "unseen",
        "ending",
        "a stranger's",
        "another worker's",
        "other",
    ],
)
def test_what_an_ended_task_left_is_told_with_the_culprit(now: DeviceUsage, text: str) -> None:
    left = devices.left_behind([now], {0: 500}, "T", "a1")
    assert (left[0].text if 0 in left else "") == text


def test_what_others_hold_is_no_part_of_the_baseline() -> None:
    before = [device(0, 2500, process(9, 2000)), device(1, 7)]
    assert devices.baseline(before, [0]) == {0: 500}
    assert devices.left_behind([device(0, 520)], {0: 500}, "T", "a1") == {}
    assert devices.left_behind([device(0, 4520, process(9, 4000))], {0: 500}, "T", "a1") == {}


def test_a_device_stays_in_quarantine_until_it_is_seen_clean() -> None:
    now = devices.left_behind([device(0, 2500, process(7, 1900, "a1"))], {0: 500}, "T", "a1")
    assert devices.still_quarantined([], now) == now
    less = devices.still_quarantined([device(0, 1500, process(7, 900, "a1"))], now)
    assert less[0].text.startswith("1000 MiB still held after task T ended")
    assert devices.still_quarantined([device(0, 510)], less) == {}


# --- what others hold -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("processes", "held", "expected"),
    [
        ([process(1, 900, "a1")], {0: ["a1"]}, None),
        ([process(1, 900, "a1"), process(2, 300, name="Xorg")], {0: ["a1"]}, (300, "pid 2 (Xorg): 300 MiB")),
        ([process(2, 30, name="Xorg")], {}, None),
        ([process(3, 900, "gone")], {0: ["a1"]}, (900, "pid 3 (python): 900 MiB")),
        ([process(3, 900, known=False)], {0: ["a1"]}, None),
        (
            [process(3, 900, name="", known=False)],
            {1: ["a1"]},
            (900, "pid 3, a process that cannot be seen from here: 900 MiB"),
        ),
        ([process(2, 300), process(4, 200)], {}, (500, "pid 2 (python): 300 MiB, pid 4 (python): 200 MiB")),
    ],
    ids=["ours", "a stranger beside ours", "a trifle", "a straggler", "perhaps ours", "not ours", "two"],
)
def test_memory_of_programs_that_are_not_ours_is_told(
    processes: list[ProcessUsage], held: dict[int, list[str]], expected: tuple[int, str] | None
) -> None:
    found = devices.outside([device(0, 5000, *processes)], held)
    assert (found.get(0) and (found[0].mib, found[0].text)) == expected


# --- decisions --------------------------------------------------------------------------------------------------------


def launched(attempt: str = "a1", **more: Any) -> list[Any]:
    facts = Facts(devices=(0,), whole=True, baseline_mib={0: 500}, **more)
    return [Assigned(order(attempt, gpu_count=1, devices=[0])), Launched(attempt=attempt, facts=facts)]


DIRTY = [device(0, 2500, process(7, 1900, "a1"))]
TEXT = "2000 MiB still held after task job-a1 ended, by pid 7 (python)"


def test_a_result_waits_for_its_devices() -> None:
    state = worker(capabilities=TWO)
    effects = do(state, *launched(), ended())
    assert effects[0] == AwaitRelease(task_id="job-a1", attempt="a1", baseline_mib={0: 500})
    assert do(state, OutcomeCollected(attempt="a1")) == []
    assert [task.state for task in state.account()] == ["succeeded"]
    assert sent(do(state, DevicesReleased(attempt="a1", usages=[device(0, 510)]))) == [
        JobResult(task_id="job-a1", attempt="a1", state="succeeded", exit_code=0)
    ]
    assert state.is_quiet is False and not state.endings


def test_a_clean_device_waits_for_nothing_but_the_log() -> None:
    state = worker(capabilities=TWO)
    do(state, *launched(), ended())
    assert do(state, DevicesReleased(attempt="a1", usages=[])) == []
    assert sent(do(state, OutcomeCollected(attempt="a1")), JobResult)


def test_the_hub_hears_of_a_device_that_is_not_clean_before_it_hears_of_the_end() -> None:
    state = worker(capabilities=TWO)
    do(state, *launched(), ended(), OutcomeCollected(attempt="a1"))
    beat, result = sent(do(state, DevicesReleased(attempt="a1", usages=DIRTY)))
    assert isinstance(beat, Heartbeat) and isinstance(result, JobResult)
    assert [one.quarantine for one in beat.capability.devices] == [TEXT, ""]
    assert state.capabilities.devices[0].quarantine == ""
    [refusal] = sent(do(state, Assigned(order("a2", gpu_count=1, devices=[0]))))
    assert (refusal.state, refusal.fault, refusal.error) == ("returned", "", f"GPU 0 is not to be used: {TEXT}")
    [beat] = sent(do(state, DevicesSeen([device(0, 500)])))
    assert not any(one.quarantine for one in beat.capability.devices)
    assert sent(do(state, DevicesSeen([device(0, 500)]))) == []


def test_devices_are_watched_without_a_hub_and_nothing_is_collected_twice() -> None:
    state = worker(capabilities=TWO)
    do(state, *launched())
    do(state, ConnectionLost())
    assert [type(effect) for effect in do(state, ended())] == [AwaitRelease]
    effects = do(state, Connected())
    assert [effect.attempt for effect in effects if not hasattr(effect, "message")] == ["a1"]
    do(state, OutcomeCollected(attempt="a1"), ConnectionLost())
    assert all(hasattr(effect, "message") for effect in do(state, Connected()))


def test_the_devices_of_a_task_that_left_no_files_are_looked_at_before_its_result_is_told() -> None:
    state = worker(capabilities=TWO)
    do(state, *launched())
    effects = do(state, ProcessEnded(ended().end, nothing_to_bring=True))
    assert [type(effect) for effect in effects] == [AwaitRelease, CollectOutcome]


def test_an_end_that_an_earlier_process_of_the_worker_left_is_looked_at_too() -> None:
    state = worker(connected=False)
    end = Ended(attempt="a1", task_id="job-a1", exit_code=0)
    held = Held(attempt="a1", task_id="job-a1", started_at=1.0, ended=end)
    effects = do(state, TookBack([(held, Facts(devices=(0,), whole=True, baseline_mib={0: 500}))]))
    assert effects == [AwaitRelease(task_id="job-a1", attempt="a1", baseline_mib={0: 500})]


def test_what_others_hold_is_in_the_offer() -> None:
    state = worker(capabilities=TWO)
    do(state, *launched())
    do(state, DevicesSeen([device(0, 3000, process(3, 900, "a1"), process(4, 512, name="Xorg"))]))
    [first, second] = state.offered().devices
    assert (first.outside_gb, first.outside, second.outside_gb) == (0.5, "pid 4 (Xorg): 512 MiB", 0.0)
    assert (first.vram_free_gb, second.vram_free_gb) == (7.5, 8.0)


@pytest.mark.parametrize(
    ("info", "free_gb", "usable_mib"),
    [
        (DeviceInfo(index=0, vram_gb=8), 8.0, 8192),
        (DeviceInfo(index=0, vram_gb=8, vram_free_gb=2), 2.0, 2048),
        (DeviceInfo(index=0), None, 0),
    ],
    ids=["of the driver", "of a file that says what is free", "of unknown size"],
)
def test_what_our_own_tasks_hold_counts_as_free(info: DeviceInfo, free_gb: float | None, usable_mib: int) -> None:
    state = worker(capabilities=Capabilities(gpu_backend="nvidia", gpu_count=1, cpu_count=4, devices=[info]))
    do(state, Assigned(order("a1", gpu_count=1, devices=[0])))
    do(state, DevicesSeen([device(0, 7000, process(3, 7000, "a1"))]))
    assert state.offered().devices[0].vram_free_gb == free_gb
    [offered] = state.offered().offer().devices
    assert offered.seen_free(offered.usable_mib) == usable_mib


# --- peaks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("usages", "before", "mib"),
    [
        ([device(0, 2500, process(7, 1200, "a1"), process(8, 300, "a1"))], {}, 1500),
        ([device(0, 2500, process(7, 1200, "a1"), process(9, 900, "a2"))], {}, 1200),
        ([device(0, 2500, process(7, 1200, "a1")), device(1, 900, process(7, 800, "a1"))], {}, 2000),
        ([device(0, 2500, process(7, 0, name="", known=False))], {0: 500}, 2000),
        ([device(0, 2500, process(9, 1900))], {0: 500}, 100),
        ([device(2, 2500, process(7, 1200, "a1"))], {}, 0),
        ([], {0: 500}, 0),
    ],
    ids=["its processes", "shared", "two devices", "unseen on its own device", "beside a stranger", "other", "unread"],
)
def test_what_an_attempt_holds_on_its_devices(usages: list[DeviceUsage], before: dict[int, int], mib: int) -> None:
    assert devices.held_by(usages, "a1", (0, 1), before) == mib


def test_the_most_that_was_seen_goes_with_heartbeats_and_with_the_result() -> None:
    state = worker(capabilities=TWO)
    do(state, Assigned(order("a1", gpu_count=1, devices=[0])))
    for mib in (1000, 7000, 3000):
        do(state, DevicesSeen([device(0, mib, process(3, mib, "a1"))]))
    [beat] = sent(do(state, BeatDue({"a1": 640, "gone": 5})))[:1]
    assert isinstance(beat, Heartbeat) and beat.active_tasks is not None
    assert [(one.peak_memory_mib, one.peak_vram_mib) for one in beat.active_tasks] == [(640, 7000)]
    do(state, ProcessEnded(Ended(attempt="a1", task_id="job-a1", exit_code=0, ran_s=9.5, peak_memory_mib=700)))
    [result] = sent(do(state, OutcomeCollected(attempt="a1")))
    assert isinstance(result, JobResult)
    assert (result.run_s, result.peak_memory_mib, result.peak_vram_mib) == (9.5, 700, 7000)


# --- at work ----------------------------------------------------------------------------------------------------------


class Scripted:
    """A reader that sees what the test puts there."""

    def __init__(self) -> None:
        self.sees: list[DeviceUsage] | None = [device(0, 500)]
        self.reads = 0

    async def read(self) -> list[DeviceUsage] | None:
        self.reads += 1
        return self.sees

    async def close(self) -> None:
        pass


@asynccontextmanager
async def with_gpu(hub: ScriptedHub, folder: Path, reader: Scripted, release_s: float) -> AsyncIterator[RunningWorker]:
    async with running_worker(hub.url, folder, capabilities=TWO, gpus=Gpus(reader, release_s=release_s)) as found:
        await hub.next("ready_for_work")
        yield found


async def test_the_result_comes_when_the_memory_is_back(hub: ScriptedHub, tmp_path: Path) -> None:
    reader = Scripted()
    async with with_gpu(hub, tmp_path / "w1", reader, 20.0) as found:
        await hub.assign("a1", "sleep", "600", gpu_count=1, devices=[0])
        await eventually(
            lambda: found.agent._state.held and found.agent._state.held["a1"].facts.baseline_mib == {0: 500}
        )
        reader.sees = DIRTY
        await hub.send("job_cancel", task_id="job-a1", attempt="a1", grace_seconds=1)
        await eventually(lambda: "a1" in found.agent._state.endings and found.agent._state.endings["a1"].collected)
        before = reader.reads
        await eventually(lambda: reader.reads > before + 2)
        assert hub.count("job_result") == 0
        reader.sees = [device(0, 500)]
        assert (await hub.next("job_result"))["state"] == "cancelled"
        assert hub.count("heartbeat") == 0 or "quarantine" not in str(hub.messages)


async def test_memory_that_does_not_come_back_is_told_with_the_result(hub: ScriptedHub, tmp_path: Path) -> None:
    reader = Scripted()
    async with with_gpu(hub, tmp_path / "w1", reader, 0.3) as found:
        gate = tmp_path / "gate"
        await hub.assign("a1", "sh", "-c", f"while [ ! -e {gate} ]; do sleep 0.02; done", gpu_count=1, devices=[0])
        await eventually(lambda: found.agent._state.held and found.agent._state.held["a1"].facts.baseline_mib)
        reader.sees = DIRTY
        gate.touch()
        assert (await hub.next("job_result"))["state"] == "succeeded"
        beats = [message for kind, message in hub.messages if kind == "heartbeat"]
        assert beats[-1]["capability"]["devices"][0]["quarantine"] == TEXT


async def test_a_reader_that_sees_nothing_holds_nothing_back(hub: ScriptedHub, tmp_path: Path) -> None:
    reader = Scripted()
    reader.sees = None
    async with with_gpu(hub, tmp_path / "w1", reader, 20.0):
        await hub.assign("a1", "true", gpu_count=1, devices=[0])
        assert (await hub.next("job_result"))["state"] == "succeeded"
    assert reader.reads == 1


async def test_tasks_without_a_whole_gpu_are_not_looked_at(hub: ScriptedHub, tmp_path: Path) -> None:
    reader = Scripted()
    async with with_gpu(hub, tmp_path / "w1", reader, 20.0):
        await hub.assign("a1", "true")
        await hub.assign("a2", "true", min_vram_gb=1, devices=[0])
        await hub.next("job_result")
        await hub.next("job_result")
    assert reader.reads == 0


# --- the probe --------------------------------------------------------------------------------------------------------


async def test_one_probe_answers_many_questions() -> None:
    answers = (
        'import os, sys\nfor line in sys.stdin: print(\'[{"index": 0, "used_mib": %d}]\' % os.getpid(), flush=True)'
    )
    probe = Probe([sys.executable, "-c", answers])
    first, second = await probe.read(), await probe.read()
    assert first is not None and first == second
    await probe.close()


@pytest.mark.parametrize("program", ["import time; time.sleep(600)", "print('nonsense', flush=True)", "exit(1)"])
async def test_a_probe_that_fails_is_given_up_for_a_while(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ostler.worker.gpus.READ_S", 0.3)
    probe = Probe([sys.executable, "-c", program])
    assert await probe.read() is None
    async with asyncio.timeout(0.2):
        assert await probe.read() is None
    await probe.close()
    assert probe._process is not None and probe._process.returncode is not None


def test_a_process_says_which_attempt_it_belongs_to() -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'], env={})"
    env = {"OSTLER_ATTEMPT": "a7", "PATH": "/bin:/usr/bin"}
    with subprocess.Popen([sys.executable, "-c", program], env=env, stdin=subprocess.PIPE) as child:
        while not (below := psutil.Process(child.pid).children()):
            pass
        assert [usage.described(pid, 1).attempt for pid in (child.pid, below[0].pid)] == ["a7", "a7"]
        assert usage.described(os.getpid(), 1).known
        child.stdin.close()  # type: ignore[union-attr]
    assert not usage.described(child.pid, 1).known


def test_whose_a_process_was_that_is_on_its_way_out_cannot_be_told() -> None:
    child = subprocess.Popen(["true"], env={"OSTLER_ATTEMPT": "a7"})
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    found = usage.described(child.pid, 1)
    assert (found.name, found.known) == ("true", False)
    child.wait()


class NvmlError(Exception):
    pass


def test_nvml_is_asked_for_devices_and_instances_and_one_that_is_lost_costs_only_itself() -> None:
    def memory(handle: str) -> Any:
        if handle == "lost":
            raise NvmlError
        return SimpleNamespace(used=len(handle) * 1024 * 1024)

    def instance(handle: str, number: int) -> str:
        if number != 2:
            raise NvmlError
        return "instance"

    def nothing(handle: str) -> Any:
        raise NvmlError

    nvml = SimpleNamespace(
        NVMLError=NvmlError,
        NVML_DEVICE_MIG_ENABLE=1,
        nvmlDeviceGetCount=lambda: 3,
        nvmlDeviceGetHandleByIndex=lambda index: ["whole", "lost", "split"][index],
        nvmlDeviceGetMigMode=lambda handle: (1, 1) if handle == "split" else nothing(handle),
        nvmlDeviceGetMaxMigDeviceCount=lambda handle: 4,
        nvmlDeviceGetMigDeviceHandleByIndex=instance,
        nvmlDeviceGetMemoryInfo=memory,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [SimpleNamespace(pid=2**30, usedGpuMemory=None)],
        nvmlDeviceGetGraphicsRunningProcesses=nothing,
    )
    unseen = [ProcessUsage(pid=2**30, known=False)]
    assert usage.read(nvml) == [
        DeviceUsage(index=0, used_mib=5, processes=unseen),
        DeviceUsage(index=302, used_mib=8, processes=unseen),
    ]
