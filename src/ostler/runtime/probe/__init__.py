"""What this machine can offer: cores, memory, accelerators, and the facts that constraints name."""

from pathlib import Path

import msgspec

from ostler.domain.gpu_names import common_type
from ostler.domain.quantities import show_cores, show_mib
from ostler.domain.resources import Offer
from ostler.domain.worker import Capabilities, GpuInfo
from ostler.runtime.probe import accelerators, machine
from ostler.runtime.probe.found import gib
from ostler.runtime.probe.offer_file import load_offer

__all__ = ["Detection", "describe", "detect", "load_offer"]


class Detection(msgspec.Struct, kw_only=True):
    capabilities: Capabilities
    memory_available_gb: float = 0.0
    """Of the memory, what nobody uses right now."""
    notes: list[str] = []
    """What could not be probed and why, and what was found but is not offered."""


def detect(timeout_s: float = 10.0, *, folder: Path | None = None) -> Detection:
    """
    Blocks for about `timeout_s` at the most, whatever the drivers do: call it in a thread.
    `folder` is where tasks will write; the free disk is told for that place, by default the working directory.
    """
    hardware = accelerators.find(timeout_s)
    memory = machine.memory()
    notes = list(hardware.notes)
    devices = hardware.found.devices
    names = [device.name for device in devices]
    gpu_type = common_type(names)
    if devices and not gpu_type:
        kinds = ", ".join(sorted(set(names)))
        notes.append(f"the GPUs differ ({kinds}): jobs that name a GPU type are not placed here")
    capabilities = Capabilities(
        gpu_backend=hardware.backend,
        gpu_count=len(devices),
        gpu_type=gpu_type,
        vram_gb=sum((device.vram_gb for device in devices), 0.0),
        cpu_count=machine.cores(),
        memory_gb=gib(memory.total_bytes),
        devices=devices,
        gpu_info=_gpu_info(hardware, gpu_type),
        labels={"unified_memory": "true"} if hardware.found.unified_memory else {},
        disk_free_gb=gib(machine.disk_free_bytes(folder or Path())),
        **msgspec.structs.asdict(machine.facts()),
    )
    return Detection(capabilities=capabilities, memory_available_gb=gib(memory.available_bytes), notes=notes)


def describe(capabilities: Capabilities) -> list[str]:
    """What the machine is fit for, one line each; empty when it cannot run anything."""
    offer = capabilities.offer()
    if not offer.cores_milli or not offer.memory_mib:
        return []
    cores = "1 core" if offer.cores_milli == 1000 else f"{show_cores(offer.cores_milli)} cores"
    lines = [f"tasks of up to {cores} and {show_mib(offer.memory_mib)} of memory"]
    if offer.devices:
        lines += _describe_gpus(offer)
    lines.append(_describe_training(offer))
    if capabilities.torch_version:
        lines.append(f"programs that use torch {capabilities.torch_version}, in the worker's own interpreter")
    return lines


def _describe_training(offer: Offer) -> str:
    """In the manifest's words."""
    if not offer.has_cuda:
        return "training jobs without `require_cuda`; those with `prefer_cuda` only after their grace"
    most_gib = max(device.vram_mib for device in offer.devices) / 1024
    limit = f", with `min_vram_gib` up to {most_gib:g}" if most_gib else ""
    return f"training jobs with or without `require_cuda`{limit}"


def _describe_gpus(offer: Offer) -> list[str]:
    sizes = sorted(device.vram_mib for device in offer.devices)
    each = show_mib(sizes[0]) if sizes[0] == sizes[-1] else f"{show_mib(sizes[0])} to {show_mib(sizes[-1])}"
    kind = f"{offer.backend}, {offer.gpu_type}" if offer.gpu_type else offer.backend
    lines = [f"tasks of up to {len(sizes)} whole GPU{'s' if len(sizes) > 1 else ''} ({kind}; {each} of VRAM each)"]
    if sizes[-1]:
        lines.append(f"tasks that share a GPU, with up to {show_mib(sizes[-1])} of VRAM")
    return lines


def _gpu_info(hardware: accelerators.Accelerators, gpu_type: str) -> GpuInfo | None:
    devices = hardware.found.devices
    if not devices:
        return None
    return GpuInfo(
        gpu_type=gpu_type,
        count=len(devices),
        devices=[device.name for device in devices],
        driver=hardware.found.driver,
        cuda=hardware.found.cuda,
        mem_total=sum(device.vram_gb for device in devices),
    )
