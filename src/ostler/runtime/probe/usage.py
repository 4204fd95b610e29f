"""Who holds memory on which NVIDIA device right now, by NVML: `python -m ostler.runtime.probe usage`.

One answer, a line of JSON, for each line on standard input, until that ends: starting a process and the driver's
library anew for each question would take longer than many a task.
"""

import importlib
import sys
from typing import Any

import msgspec
import psutil

from ostler.runtime.probe.nvidia import MIG_BASE

MIB = 1024 * 1024


class ProcessUsage(msgspec.Struct, kw_only=True, omit_defaults=True):
    pid: int
    mib: int = 0
    name: str = ""
    attempt: str = ""
    """The attempt of a task that it belongs to, by the environment of it or of a process above it."""
    known: bool = True
    """False: whose it is cannot be told. It is in another container, or it is ending: what is left of a process that
    is on its way out shows neither its environment nor its command, but may well hold memory."""


class DeviceUsage(msgspec.Struct, kw_only=True, omit_defaults=True):
    index: int
    used_mib: int = 0
    processes: list[ProcessUsage] = []


def serve() -> int:
    nvml = importlib.import_module("pynvml")
    nvml.nvmlInit()
    for _ in sys.stdin:
        sys.stdout.write(msgspec.json.encode(read(nvml)).decode() + "\n")
        sys.stdout.flush()
    return 0


def read(nvml: Any) -> list[DeviceUsage]:
    """Of every device whose memory can be told; indices as in the offer."""
    found: list[DeviceUsage] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            instances = list(_instances(nvml, handle))
            for number, part in instances or [(-1, handle)]:
                place = index if number < 0 else MIG_BASE * (index + 1) + number
                used_mib = nvml.nvmlDeviceGetMemoryInfo(part).used // MIB
                found.append(DeviceUsage(index=place, used_mib=used_mib, processes=_processes(nvml, part)))
        except nvml.NVMLError:
            # It has fallen off the bus, or shares the machine's memory: nothing can be said about it.
            continue
    return found


def _instances(nvml: Any, handle: Any) -> list[tuple[int, Any]]:
    try:
        if nvml.nvmlDeviceGetMigMode(handle)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return []
        count = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except nvml.NVMLError:
        return []
    found = []
    for number in range(count):
        try:
            found.append((number, nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)))
        except nvml.NVMLError:
            continue
    return found


def _processes(nvml: Any, handle: Any) -> list[ProcessUsage]:
    found: dict[int, int] = {}
    for question in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses):
        try:
            for one in question(handle):
                found[one.pid] = max(found.get(one.pid, 0), (one.usedGpuMemory or 0) // MIB)
        except nvml.NVMLError:
            continue
    return [described(pid, mib) for pid, mib in found.items()]


def described(pid: int, mib: int) -> ProcessUsage:
    found = ProcessUsage(pid=pid, mib=mib)
    try:
        process = psutil.Process(pid)
        found.name = process.name()
        found.attempt = _attempt(process)
        found.known = bool(found.attempt or process.cmdline())
    except psutil.NoSuchProcess:
        found.known = False
    except psutil.Error:
        pass  # another user's, which show little
    return found


def _attempt(process: psutil.Process) -> str:
    """Another user's processes do not show their environment; they are not of our tasks."""
    while process.pid > 1:
        try:
            if attempt := process.environ().get("OSTLER_ATTEMPT"):
                return attempt
        except (psutil.AccessDenied, psutil.ZombieProcess, OSError):
            pass
        parent = process.parent()
        if parent is None:
            break
        process = parent
    return ""
