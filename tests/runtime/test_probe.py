"""Hardware detection: the whole, the isolation of probes that misbehave, and the limits of control groups."""

import os
import platform
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import psutil
import pytest
from tests.runtime.trees import plant

from ostler.domain.worker import Capabilities, DeviceInfo
from ostler.runtime.probe import (
    accelerators,
    cgroup,
    describe,
    detect,
    isolated,
    machine,
)
from ostler.runtime.probe.found import gib

GIB = 2**30

# --- the whole --------------------------------------------------------------------------------------------------------


def test_this_machine_is_detected_with_its_cores_memory_and_names() -> None:
    detection = detect(timeout_s=60.0)
    found = detection.capabilities
    assert found.hostname == socket.gethostname()
    assert found.os == platform.system().lower()
    assert found.arch == platform.machine()
    assert found.python == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert 0 < found.cpu_count <= (psutil.cpu_count() or 1)
    assert 0 < found.memory_gb <= gib(psutil.virtual_memory().total)
    assert 0 < detection.memory_available_gb <= found.memory_gb
    assert found.disk_free_gb > 0
    assert found.gpu_count == len(found.devices)
    assert found.offer().cores_milli > 0


def test_a_detection_survives_the_journey_to_the_hub() -> None:
    found = detect(timeout_s=60.0).capabilities
    assert msgspec.json.decode(msgspec.json.encode(found), type=Capabilities) == found


def test_the_commit_is_that_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert machine.facts().git_commit == ""
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], [*who, "commit", "-q", "--allow-empty", "-m", "one"]):
        assert isolated.run(["git", *words], 10.0).failure == ""
    assert len(machine.facts().git_commit) == 40


def test_a_folder_that_is_still_to_be_made_has_the_free_disk_of_its_parent(tmp_path: Path) -> None:
    assert machine.disk_free_bytes(tmp_path / "not" / "there") > 0


def test_amounts_are_rounded_down_to_whole_mebibytes() -> None:
    assert gib(3 * GIB + 2**20 - 1) == 3.0
    assert gib(-1) == 0.0


def test_a_machine_is_described_by_what_it_is_fit_for() -> None:
    gpu = DeviceInfo(index=0, uuid="GPU-1", name="NVIDIA L4", vram_gb=22.5)
    lines = describe(
        Capabilities(gpu_backend="nvidia", gpu_count=1, gpu_type="L4", cpu_count=1, memory_gb=16, devices=[gpu])
    )
    assert lines == [
        "tasks of up to 1 core and 16 GiB of memory",
        "tasks of up to 1 whole GPU (nvidia, L4; 22.5 GiB of VRAM each)",
        "tasks that share a GPU, with up to 22.5 GiB of VRAM",
        "training jobs with or without `require_cuda`, with `min_vram_gib` up to 22.5",
    ]


def test_a_machine_without_cuda_is_fit_for_the_other_training_jobs() -> None:
    assert describe(Capabilities(cpu_count=4, memory_gb=16)) == [
        "tasks of up to 4 cores and 16 GiB of memory",
        "training jobs without `require_cuda`; those with `prefer_cuda` only after their grace",
    ]


def test_a_machine_without_cores_or_memory_is_fit_for_nothing() -> None:
    assert describe(Capabilities(memory_gb=4)) == []
    assert describe(Capabilities(cpu_count=4)) == []


# --- isolation --------------------------------------------------------------------------------------------------------


def script(**programs: str) -> Callable[[str], Sequence[str]]:
    """Probes that are one Python program each."""
    return lambda backend: [sys.executable, "-c", programs[backend]]


ANSWER = 'print(\'{"devices": [{"index": 0, "name": "A GPU", "vram_gb": 8.0}], "driver": "1.2"}\')'


def test_a_probe_that_sleeps_for_ever_is_cut_off_and_noted() -> None:
    result = accelerators.find(0.5, ["nvidia"], script(nvidia="import time; time.sleep(3600)"))
    assert result.backend == "cpu"
    assert result.notes[0].startswith("nvidia: the probe did not answer within 0.")


def test_what_a_sleeping_probe_started_is_killed_with_it(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    program = (
        "import subprocess, sys\n"
        f"pipe = open({str(pipe)!r}, 'wb', buffering=0)\n"
        "pipe.write(b'open')\n"
        "sleep = [sys.executable, '-c', 'import time; time.sleep(3600)']\n"
        "subprocess.run(sleep, pass_fds=[pipe.fileno()])\n"
    )
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    accelerators.find(1.5, ["vulkan"], script(vulkan=program))
    os.set_blocking(reader, True)
    with open(reader, "rb") as end:
        # Ends only when nobody holds the other end any more.
        assert end.read() == b"open"


def test_a_probe_that_sleeps_does_not_hide_what_another_one_finds() -> None:
    probes = script(nvidia="import time; time.sleep(3600)", vulkan=ANSWER)
    result = accelerators.find(1.5, ["nvidia", "vulkan"], probes)
    assert result.backend == "vulkan"
    assert [device.name for device in result.found.devices] == ["A GPU"]
    assert len(result.notes) == 1


def test_probes_behind_the_winner_are_not_waited_for() -> None:
    probes = script(nvidia=ANSWER, vulkan="import time; time.sleep(3600)")
    result = accelerators.find(60.0, ["nvidia", "vulkan"], probes)
    assert (result.backend, result.notes) == ("nvidia", [])


def test_a_probe_that_crashes_with_sigsegv_is_noted() -> None:
    crash = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    result = accelerators.find(10.0, ["nvidia"], script(nvidia=crash))
    assert result.notes == ["nvidia: the probe was killed by SIGSEGV"]


def test_a_probe_that_raises_is_noted_with_the_last_thing_it_said() -> None:
    result = accelerators.find(10.0, ["rocm"], script(rocm="raise RuntimeError('no such card')"))
    assert result.notes == ["rocm: the probe exited with code 1: RuntimeError: no such card"]


def test_a_probe_that_cannot_be_started_is_noted() -> None:
    result = accelerators.find(10.0, ["metal"], lambda backend: ["no-such-program-anywhere"])
    assert result.notes == ["metal: the probe could not be started: No such file or directory"]


@pytest.mark.parametrize("said", ["print('hello')", "pass", "print('[1, 2]')"])
def test_an_answer_that_cannot_be_read_is_noted(said: str) -> None:
    result = accelerators.find(10.0, ["nvidia"], script(nvidia=said))
    assert result.backend == "cpu"
    assert "cannot be read" in result.notes[0]


def test_what_a_driver_prints_before_the_answer_is_passed_over() -> None:
    result = accelerators.find(10.0, ["nvidia"], script(nvidia=f"print('MESA: warning'); {ANSWER}"))
    assert (result.backend, result.found.driver) == ("nvidia", "1.2")


@pytest.mark.parametrize("backend", accelerators.ORDER)
def test_every_probe_answers_whatever_hardware_is_there(backend: str) -> None:
    result = accelerators.find(30.0, [backend])
    assert not any("the probe" in note for note in result.notes)


def test_an_unknown_probe_is_refused() -> None:
    outcome = isolated.run([*accelerators._command("abacus")], 30.0)
    assert outcome.failure


def test_a_command_that_ends_well_leaves_its_output() -> None:
    assert isolated.run([sys.executable, "-c", "print('hello')"], 10.0) == isolated.Outcome("hello\n")


def test_a_command_that_dies_of_an_unusual_signal_is_told_by_its_name() -> None:
    killed = isolated.run([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], 10.0)
    assert killed.failure == f"was killed by {signal.SIGKILL.name}"


# --- control groups ---------------------------------------------------------------------------------------------------


def test_version_2_groups_limit_cores_and_memory(tmp_path: Path) -> None:
    root = plant(
        tmp_path,
        **{
            "proc/self/cgroup": "0::/system.slice/ostler.service\n",
            "sys/fs/cgroup/system.slice/ostler.service/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/system.slice/ostler.service/memory.max": f"{4 * GIB}\n",
            "sys/fs/cgroup/system.slice/ostler.service/memory.current": f"{3 * GIB}\n",
            "sys/fs/cgroup/system.slice/ostler.service/memory.stat": f"anon {GIB}\ninactive_file {2 * GIB}\n",
            "sys/fs/cgroup/system.slice/ostler.service/cpuset.cpus.effective": "0-3\n",
        },
    )
    assert cgroup.limits(root) == cgroup.Limits(1.5, 4 * GIB, 3 * GIB)


def test_a_tighter_limit_of_a_parent_group_counts(tmp_path: Path) -> None:
    root = plant(
        tmp_path,
        **{
            "proc/self/cgroup": "0::/a/b/c\n",
            "sys/fs/cgroup/a/cpu.max": "200000 100000\n",
            "sys/fs/cgroup/a/memory.max": f"{2 * GIB}\n",
            "sys/fs/cgroup/a/b/cpuset.cpus.effective": "0,2-3\n",
            "sys/fs/cgroup/a/b/c/cpu.max": "max 100000\n",
            "sys/fs/cgroup/a/b/c/memory.max": "max\n",
        },
    )
    found = cgroup.limits(root)
    assert (found.cores, found.memory_bytes) == (2.0, 2 * GIB)


def test_version_1_groups_limit_cores_and_memory(tmp_path: Path) -> None:
    root = plant(
        tmp_path,
        **{
            "proc/self/cgroup": "4:memory:/docker/abc\n3:cpuset:/\n2:cpu,cpuacct:/docker/abc\n0::/\n",
            # The container's own group is the mount here, so that the host's path leads nowhere.
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{GIB}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB // 2}\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpuset/cpuset.cpus": "0-7\n",
        },
    )
    assert cgroup.limits(root) == cgroup.Limits(0.5, GIB, GIB // 2)


def test_groups_without_limits_limit_nothing(tmp_path: Path) -> None:
    root = plant(
        tmp_path,
        **{
            "proc/self/cgroup": "1:cpu:/\n0::/../outside\n",
            "sys/fs/cgroup/cpu.max": "max 100000\n",
            "sys/fs/cgroup/memory.max": "max\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    assert cgroup.limits(root) == cgroup.Limits()
    assert cgroup.limits(tmp_path / "no-linux-here") == cgroup.Limits()


def test_cores_and_memory_are_the_tightest_of_machine_and_groups(tmp_path: Path) -> None:
    root = plant(
        tmp_path,
        **{
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/cpu.max": "25000 100000\n",
            "sys/fs/cgroup/memory.max": f"{64 * 2**20}\n",
            "sys/fs/cgroup/memory.current": f"{16 * 2**20}\n",
        },
    )
    assert machine.cores(root) == 0.25
    assert machine.memory(root) == machine.Memory(64 * 2**20, 48 * 2**20)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no processor affinity")
def test_cores_outside_the_affinity_are_not_offered() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert machine.cores() <= 1.0
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(("text", "count"), [("0", 1), ("0-3,7", 5), ("0-1,4-5,9\n", 5), ("", 0), ("\n", 0)])
def test_lists_of_processors_are_counted(text: str, count: int) -> None:
    assert cgroup.count_cpus(text) == count
