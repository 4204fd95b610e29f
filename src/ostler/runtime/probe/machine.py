"""The machine without its accelerators: who it is, and how many cores and how much memory this process may use."""

import os
import platform
import shutil
import socket
import sys
from importlib import metadata
from pathlib import Path

import msgspec
import psutil

from ostler.runtime.probe import cgroup, isolated

_GIT_TIMEOUT_S = 2.0


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine is, as against how much it has. The names are those of a worker's capabilities."""

    hostname: str
    os: str
    arch: str
    python: str
    torch_version: str
    git_commit: str


class Memory(msgspec.Struct, frozen=True):
    total_bytes: int
    available_bytes: int


def facts() -> Facts:
    return Facts(
        hostname=socket.gethostname(),
        os=platform.system().lower(),
        arch=platform.machine(),
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        torch_version=_torch_version(),
        git_commit=_git_commit(),
    )


def cores(root: Path = Path("/")) -> float:
    """A quota may leave part of a core: 1.5 is a usual answer inside a container."""
    bounds = [float(psutil.cpu_count() or 1), cgroup.limits(root).cores]
    if hasattr(os, "sched_getaffinity"):
        bounds.append(float(len(os.sched_getaffinity(0))))
    return min(bound for bound in bounds if bound is not None)


def memory(root: Path = Path("/")) -> Memory:
    machine = psutil.virtual_memory()
    limits = cgroup.limits(root)
    total = machine.total if limits.memory_bytes is None else min(machine.total, limits.memory_bytes)
    available = machine.available if limits.headroom_bytes is None else min(machine.available, limits.headroom_bytes)
    return Memory(total, available)


def disk_free_bytes(folder: Path) -> int:
    """Free where tasks will write; a folder that is still to be made counts as the one it will be made in."""
    for place in (folder.absolute(), *folder.absolute().parents):
        try:
            return shutil.disk_usage(place).free
        except OSError:
            continue
    return 0


def _torch_version() -> str:
    # Asked of the package's metadata: importing torch takes seconds and starts the drivers.
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""


def _git_commit() -> str:
    outcome = isolated.run(["git", "rev-parse", "--verify", "--quiet", "HEAD"], _GIT_TIMEOUT_S)
    return "" if outcome.failure else outcome.stdout.strip()
