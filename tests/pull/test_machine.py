"""What a machine says about itself when it asks for work."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.pull.bare import Start
from tests.pull.scripted_hub import PATIENCE_S, ScriptedPullHub
from tests.runtime.trees import plant

from ostler import pull

MIB = 1 << 20
NVIDIA_SMI = """#!/bin/sh
# Two GPUs, of which --id=1 and --id=GPU-1f-10 choose the second.
case "$*" in
  *--query-gpu=name,memory.total,memory.free*--format=csv,noheader,nounits*) ;;
  *) exit 2 ;;
esac
case "$*" in *--id=none*) exit 6 ;; esac
case "$*" in *--id=1 | *--id=GPU-1f-10) ;; *) echo "NVIDIA H100 80GB HBM3, 81559, 80000" ;; esac
echo "NVIDIA GeForce RTX 3090, 24576, 2048"
"""


@pytest.fixture
def gpus(tmp_path: Path) -> str:
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(NVIDIA_SMI)
    program.chmod(0o755)
    return f"{program.parent}:/usr/bin:/bin"


def checked(start: Start, **env: str) -> dict[str, Any]:
    worker = start("--check", **env)
    printed, said = worker.process.communicate(timeout=PATIENCE_S)
    assert worker.process.returncode == 0, said
    found: dict[str, Any] = json.loads(printed)
    return found


def test_check_prints_what_the_machine_has(start: Start, gpus: str) -> None:
    found = checked(start, PATH=gpus)
    assert found["cuda_available"] is True
    assert found["cuda_devices"] == [
        {"name": "NVIDIA H100 80GB HBM3", "vram_total_gib": 79.647, "vram_free_gib": 78.125},
        {"name": "NVIDIA GeForce RTX 3090", "vram_total_gib": 24.0, "vram_free_gib": 2.0},
    ]
    assert 0 < found["cpu_cores"] <= len(os.sched_getaffinity(0))
    assert 0 < found["ram_available_gib"] <= found["ram_total_gib"] <= psutil.virtual_memory().total / 2**30 + 0.001


def test_without_nvidia_smi_there_is_no_cuda(start: Start) -> None:
    found = checked(start, PATH="/usr/bin:/bin")
    assert (found["cuda_available"], found["cuda_devices"]) == (False, [])


def test_a_mask_on_the_worker_is_respected(hub: ScriptedPullHub, start: Start, gpus: str) -> None:
    for mask in ("1", " 1 ,-1,0", "GPU-1f-10"):
        found = checked(start, PATH=gpus, CUDA_VISIBLE_DEVICES=mask)
        assert [device["name"] for device in found["cuda_devices"]] == ["NVIDIA GeForce RTX 3090"], mask
    assert checked(start, PATH=gpus, CUDA_VISIBLE_DEVICES="")["cuda_available"] is False
    assert checked(start, PATH=gpus, CUDA_VISIBLE_DEVICES="-1")["cuda_available"] is False
    hub.add("sh", "-c", "echo $CUDA_VISIBLE_DEVICES", devices=[0], env={"CUDA_VISIBLE_DEVICES": "0"})
    assert start("--once", PATH=gpus, CUDA_VISIBLE_DEVICES="1").end()[0] == 0
    assert list(hub.logs.values()) == [b"1\n"]


def test_the_commit_of_the_working_directory_goes_along(start: Start, tmp_path: Path) -> None:
    assert "git_commit" not in checked(start, GIT_CEILING_DIRECTORIES=str(tmp_path.parent))
    author = "-c user.name=a -c user.email=b commit -q --allow-empty -m c".split()
    for command in (["init", "-q"], author):
        assert os.spawnlp(os.P_WAIT, "git", "git", "-C", str(tmp_path), *command) == 0
    assert len(checked(start)["git_commit"]) == 40


def test_control_groups_limit_what_is_offered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gib = 2**30
    read = pull.tail
    monkeypatch.setattr(pull, "tail", lambda path, size=MIB: read(tmp_path / str(path).lstrip("/"), size))
    planted = {
        "proc/meminfo": "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:    8388608 kB\n",
        "proc/self/cgroup": "0::/jobs/mine\n",
        "sys/fs/cgroup/jobs/cpu.max": "50000 100000\n",
        "sys/fs/cgroup/jobs/mine/cpu.max": "max 100000\n",
        "sys/fs/cgroup/jobs/mine/memory.max": f"{4 * gib}\n",
        "sys/fs/cgroup/jobs/mine/memory.current": f"{3 * gib}\n",
        "sys/fs/cgroup/jobs/mine/memory.stat": f"anon {gib}\ninactive_file {gib}\nactive_file 5\n",
        "sys/fs/cgroup/jobs/memory.max": "max\n",
    }
    plant(tmp_path, **planted)
    found = pull.detect()
    assert (found["cpu_cores"], found["ram_total_gib"], found["ram_available_gib"]) == (0.5, 4.0, 2.0)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    found = pull.detect()
    assert (found["ram_total_gib"], found["ram_available_gib"]) == (16.0, 8.0)
    assert found["cpu_cores"] == len(os.sched_getaffinity(0))


VM_STAT = """#!/bin/sh
cat <<END
Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                              131072.
Pages active:                            400000.
Pages inactive:                           65536.
Pages speculative:                        65536.
END
"""


def test_a_mac_tells_its_memory_by_other_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, text in {
        "vm_stat": VM_STAT,
        "sysctl": '#!/bin/sh\ntest "$*" = "-n hw.memsize" && echo 17179869184',
    }.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(sys, "platform", "darwin")
    found = pull.detect()
    assert (found["ram_total_gib"], found["ram_available_gib"]) == (16.0, 4.0)
