"""NVIDIA GPUs, by NVML: whole devices and MIG instances."""

import importlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from ostler.domain.worker import DeviceInfo
from ostler.runtime.probe import machine, mask, pci
from ostler.runtime.probe.found import Found, gib

# MIG instances have no index of their own in CUDA. Theirs start here, clear of every whole GPU's: instance 2 of GPU 0
# is 102, of GPU 1 it is 202, whichever other instances come and go. Tasks are given them by uuid.
MIG_BASE = 100


class Instance(msgspec.Struct, kw_only=True):
    slot: int
    uuid: str
    name: str
    gpu_instance: int = -1
    compute_instance: int = -1
    total_bytes: int | None = None
    free_bytes: int | None = None


class Gpu(msgspec.Struct, kw_only=True):
    index: int
    uuid: str
    name: str
    total_bytes: int | None = None
    """None: NVML does not support the question, for the GPU uses the machine's memory (GB10, Jetson)."""
    free_bytes: int | None = None
    mig: list[Instance] | None = None
    """None: MIG is off, and the GPU is used whole."""


class Reading(msgspec.Struct, kw_only=True):
    driver: str = ""
    cuda: str = ""
    """The newest version of CUDA that the driver supports."""
    gpus: list[Gpu] = []
    notes: list[str] = []


def probe() -> Found:
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError as error:
        return _without_nvml(str(error))
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return _without_nvml(str(error), expected=_no_driver(nvml, error))
    try:
        return offered(read(nvml), os.environ, machine.memory())
    finally:
        nvml.nvmlShutdown()


def read(nvml: Any) -> Reading:
    """All that NVML knows, masked or not. A GPU that has fallen off the bus costs a note, not the others."""
    reading = Reading(driver=_ask(nvml, nvml.nvmlSystemGetDriverVersion) or "", cuda=_cuda_version(nvml))
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            mig = list(_instances(nvml, handle)) if _mig_is_on(nvml, handle) else None
            total, free = _memory(nvml, handle) if mig is None else (None, None)
            reading.gpus.append(
                Gpu(
                    index=index,
                    uuid=nvml.nvmlDeviceGetUUID(handle),
                    name=nvml.nvmlDeviceGetName(handle),
                    total_bytes=total,
                    free_bytes=free,
                    mig=mig,
                )
            )
        except nvml.NVMLError as error:
            reading.notes.append(f"nvidia: GPU {index} does not answer: {error}")
    return reading


def offered(reading: Reading, env: Mapping[str, str], memory: machine.Memory) -> Found:
    """The devices that the worker may hand out, with indices as the machine counts them, mask or no mask."""
    parts = [part for gpu in reading.gpus for part in _parts(gpu)]
    notes = list(reading.notes)
    notes += [f"nvidia: GPU {gpu.index} has MIG on but no instances" for gpu in reading.gpus if gpu.mig == []]
    given = env.get("CUDA_VISIBLE_DEVICES")
    chosen = mask.visible(given, parts, _answers)
    if len(chosen) < len(parts):
        notes.append(f"nvidia: CUDA_VISIBLE_DEVICES={given} leaves {len(chosen)} of {len(parts)} devices")
    if _order_is_unsure(given, env, reading):
        notes.append(
            "nvidia: CUDA_VISIBLE_DEVICES was read in the order of the PCI bus; CUDA counts the fastest GPU first "
            "unless CUDA_DEVICE_ORDER=PCI_BUS_ID is set"
        )
    return Found(
        devices=[part.info(memory) for part in chosen],
        driver=reading.driver,
        cuda=reading.cuda,
        unified_memory=any(part.total_bytes is None for part in chosen),
        notes=notes,
    )


class _Part(msgspec.Struct, kw_only=True):
    """One thing to hand out: a whole GPU, or an instance of one."""

    index: int
    uuid: str
    name: str
    total_bytes: int | None
    free_bytes: int | None
    gpu_index: int
    gpu_uuid: str
    old_mig_name: str = ""

    def info(self, memory: machine.Memory) -> DeviceInfo:
        total, free = self.total_bytes, self.free_bytes
        if total is None:
            total, free = memory.total_bytes, memory.available_bytes
        return DeviceInfo(
            index=self.index,
            uuid=self.uuid,
            name=self.name,
            vram_gb=gib(total),
            vram_free_gb=None if free is None else gib(free),
        )


def _parts(gpu: Gpu) -> list[_Part]:
    if gpu.mig is None:
        whole = _Part(
            index=gpu.index,
            uuid=gpu.uuid,
            name=gpu.name,
            total_bytes=gpu.total_bytes,
            free_bytes=gpu.free_bytes,
            gpu_index=gpu.index,
            gpu_uuid=gpu.uuid,
        )
        return [whole]
    return [
        _Part(
            index=MIG_BASE * (gpu.index + 1) + instance.slot,
            uuid=instance.uuid,
            name=instance.name,
            total_bytes=instance.total_bytes,
            free_bytes=instance.free_bytes,
            gpu_index=gpu.index,
            gpu_uuid=gpu.uuid,
            old_mig_name=f"MIG-{gpu.uuid}/{instance.gpu_instance}/{instance.compute_instance}",
        )
        for instance in gpu.mig
    ]


def _answers(part: _Part, word: str) -> bool:
    """Names may be cut short, as far as CUDA allows it: after the prefix, anything that the uuid begins with."""
    if word.isdecimal():
        return part.gpu_index == int(word)
    if word.startswith("MIG-"):
        return part.uuid.startswith(word) or part.old_mig_name == word
    return word.startswith("GPU-") and part.gpu_uuid.startswith(word)


def _order_is_unsure(given: str | None, env: Mapping[str, str], reading: Reading) -> bool:
    by_number = given is not None and given.split(",")[0].strip().isdecimal()
    alike = len({gpu.name for gpu in reading.gpus}) <= 1
    return by_number and not alike and env.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"


def _instances(nvml: Any, handle: Any) -> Iterator[Instance]:
    for slot in range(_ask(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        # Free slots answer with an error. Asked of the instance itself, for the parent would tell all of its memory.
        instance = _ask(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, slot)
        if instance is None:
            continue
        total, free = _memory(nvml, instance)
        gpu_instance = _ask(nvml, nvml.nvmlDeviceGetGpuInstanceId, instance)
        compute_instance = _ask(nvml, nvml.nvmlDeviceGetComputeInstanceId, instance)
        yield Instance(
            slot=slot,
            uuid=nvml.nvmlDeviceGetUUID(instance),
            name=nvml.nvmlDeviceGetName(instance),
            gpu_instance=-1 if gpu_instance is None else gpu_instance,
            compute_instance=-1 if compute_instance is None else compute_instance,
            total_bytes=total,
            free_bytes=free,
        )


def _cuda_version(nvml: Any) -> str:
    number = _ask(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2)
    return f"{number // 1000}.{number % 1000 // 10}" if number else ""


def _mig_is_on(nvml: Any, handle: Any) -> bool:
    modes = _ask(nvml, nvml.nvmlDeviceGetMigMode, handle)
    return modes is not None and modes[0] == nvml.NVML_DEVICE_MIG_ENABLE


def _memory(nvml: Any, handle: Any) -> tuple[int | None, int | None]:
    try:
        info = nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError as error:
        # Only this answer means unified memory; any other error is a GPU whose memory must not be guessed.
        if error.value != nvml.NVML_ERROR_NOT_SUPPORTED:
            raise
        return None, None
    return (info.total, info.free) if info.total else (None, None)


def _ask(nvml: Any, question: Any, *args: Any) -> Any:
    """The answer, or None where this part or driver has none."""
    try:
        return question(*args)
    except nvml.NVMLError as error:
        if error.value in (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_UNKNOWN):
            raise
        return None


def _no_driver(nvml: Any, error: Any) -> bool:
    return error.value in (nvml.NVML_ERROR_LIBRARY_NOT_FOUND, nvml.NVML_ERROR_DRIVER_NOT_LOADED)


def _without_nvml(why: str, *, expected: bool = True) -> Found:
    """Nothing to say on a machine without such a GPU; but one that is there and cannot be used is worth a note."""
    if expected and pci.NVIDIA not in pci.gpu_vendors():
        return Found()
    return Found(notes=[f"nvidia: the driver cannot be asked: {why}"])
