"""A worker as it describes itself: the types of the worker protocol, and the offer that the core makes of them."""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from ostler.domain.gpu_names import names_of
from ostler.domain.quantities import offered_mib, offered_milli
from ostler.domain.resources import Device, Offer

# Bounded: these numbers come from the network, and the hub makes room for what they claim.
Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
MAX_DEVICES = 1024
GpuCount = Annotated[int, msgspec.Meta(ge=0, le=MAX_DEVICES)]
Word = Annotated[str, msgspec.Meta(max_length=256)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Mib = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
Bytes = Annotated[float, msgspec.Meta(ge=0, le=2.0**64)]


OUTSIDE_STEP_MIB = 256

FACTS = ("hostname", "os", "arch", "python", "torch", "driver", "cuda")
"""Labels whose values come from what a worker announces about its machine."""


class DeviceInfo(msgspec.Struct, kw_only=True, omit_defaults=True):
    index: Count = 0
    uuid: Word = ""
    name: Word = ""
    vram_gb: Amount = 0.0
    vram_free_gb: Amount | None = None
    outside_gb: Amount = 0.0
    """Memory taken by programs that Ostler did not start; it lowers the offer while it lasts."""
    outside: str = ""
    """Who that is, in words."""
    quarantine: str = ""
    """Why the device is not to be used: what a task left on it, with the culprit named."""


class GpuInfo(msgspec.Struct, kw_only=True, omit_defaults=True):
    gpu_type: Word = ""
    count: Count = 0
    devices: Annotated[list[DeviceInfo | Word | int], msgspec.Meta(max_length=MAX_DEVICES)] = []
    driver: str = ""
    cuda: Word = ""
    """The newest version of CUDA that the driver supports."""
    mem_total: Bytes = 0.0


class Capabilities(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a worker says it can do. Only the first names are in every version of the protocol."""

    gpu_backend: Word = "cpu"
    gpu_count: GpuCount = 0
    gpu_type: Word = ""
    vram_gb: Amount = 0.0
    cpu_count: Amount = 0.0
    memory_gb: Amount = 0.0
    memory_available_gb: Amount | None = None
    """Of it, what was available when this was said; None: not known, or not worth saying."""
    hostname: Word = ""
    address: Word = ""
    """Where its tasks are reached by others, if that is not where its connection comes from."""
    gpu_info: GpuInfo | None = None
    devices: Annotated[list[DeviceInfo], msgspec.Meta(max_length=MAX_DEVICES)] = []
    labels: dict[str, str] = {}
    snapshots: list[str] = []
    """The snapshots that are unpacked there already."""
    torch_version: str = ""
    git_commit: str = ""
    disk_free_gb: Amount = 0.0
    os: str = ""
    arch: str = ""
    python: str = ""

    def offer(self) -> Offer:
        gpu_type, gpu_names = self._gpu_names()
        return Offer(
            backend=(self.gpu_backend or "cpu").lower(),
            gpu_type=gpu_type,
            gpu_names=gpu_names,
            devices=self._devices(),
            cores_milli=offered_milli(self.cpu_count),
            memory_mib=offered_mib(self.memory_gb),
            labels=self.facts(),
            available_mib=None if self.memory_available_gb is None else offered_mib(self.memory_available_gb),
            hostname=self.hostname,
        )

    def facts(self) -> dict[str, str]:
        """Returns the labels and the well-known facts. An announced fact replaces a label of its name."""
        gpus = self.gpu_info or GpuInfo()
        values = (self.hostname, self.os, self.arch, self.python, self.torch_version, gpus.driver, gpus.cuda)
        return {**self.labels, **{name: value for name, value in zip(FACTS, values, strict=True) if value}}

    def _gpu_names(self) -> tuple[str, tuple[str, ...]]:
        announced = self.gpu_type or (self.gpu_info.gpu_type if self.gpu_info else "")
        listed = [info.name if isinstance(info, DeviceInfo) else str(info) for info in self._listed()]
        return names_of(announced, [name for name in listed if not name.isdecimal()])

    def _listed(self) -> Sequence[DeviceInfo | str | int]:
        return self.devices or (self.gpu_info.devices if self.gpu_info else [])

    def _devices(self) -> tuple[Device, ...]:
        reported = {info.index: info for info in self._listed() if isinstance(info, DeviceInfo)}
        if reported and len(reported) >= self.gpu_count:
            infos = sorted(reported.values(), key=lambda info: info.index)
            known = any(info.vram_gb for info in infos)
            share = 0.0 if known else self.vram_gb / len(infos)
            return tuple(_device(info, info.vram_gb if known else share) for info in infos)
        if not self.gpu_count:
            return ()
        each = offered_mib(self.vram_gb / self.gpu_count)
        return tuple(Device(index, each, name=self.gpu_type) for index in range(self.gpu_count))


def _device(info: DeviceInfo, vram_gb: float) -> Device:
    """What others take is counted in steps, so that an offer does not change with every breath of theirs."""
    taken = -(-offered_mib(info.outside_gb) // OUTSIDE_STEP_MIB) * OUTSIDE_STEP_MIB
    total = offered_mib(vram_gb)
    free = total if info.vram_free_gb is None else offered_mib(info.vram_free_gb)
    return Device(
        index=info.index,
        vram_mib=total,
        uuid=info.uuid,
        name=info.name,
        outside_mib=taken,
        outside=info.outside if taken else "",
        quarantine=info.quarantine,
        # A worker that says who else is there has said all that its free memory could say.
        free_mib=free if free < total and not info.outside_gb else None,
    )


class Slots(msgspec.Struct, kw_only=True):
    batch_total: Count = 0
    batch_in_use: Count = 0
    service_total: Count = 0
    service_in_use: Count = 0

    def total(self, pool: str) -> int:
        return self.batch_total if pool == "batch" else self.service_total

    def in_use(self, pool: str) -> int:
        return self.batch_in_use if pool == "batch" else self.service_in_use


WAITING = "waiting"
"""In a worker's account: it was sent ahead, and has not begun."""


class ActiveTask(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One line of a worker's account of what it holds."""

    task_id: str
    attempt: str = ""
    state: str = "running"
    started_at: str = ""
    checkpoint: str = ""
    """The blob of its checkpoint that was brought to the hub last."""
    peak_memory_mib: Mib = 0
    peak_vram_mib: Mib = 0
    """What it has taken at most so far; 0: not known."""
    memory_mib: Mib = 0
    vram_mib: Mib = 0
    cpu_s: Annotated[float, msgspec.Meta(ge=0, le=1e12)] = 0.0
    """What it takes at the moment, and how much processor time it has taken; 0: not known."""
    waits_for: Word = ""
    """Of one that has not begun, in words: whose turn it waits for, where that is somebody else's queue. It has its
    room here, and its place there is worth keeping."""
