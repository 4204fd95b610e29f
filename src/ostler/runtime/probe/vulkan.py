"""GPUs that only Vulkan knows, from vulkaninfo: its summary for the devices, its full report for their memory."""

import os
import re
from collections.abc import Mapping

import msgspec

from ostler.domain.worker import DeviceInfo
from ostler.runtime.probe import isolated, mask, pci
from ostler.runtime.probe.found import Found, gib

_GPU = re.compile(r"^GPU(\d+):\s*$")
_PAIR = re.compile(r"^\s+(\w+)\s*=\s*(.+?)\s*$")
_HEAP = re.compile(r"^\s+memoryHeaps\[\d+\]:")
_SOFTWARE = ("llvmpipe", "lavapipe", "swiftshader", "softpipe")


class Gpu(msgspec.Struct, kw_only=True):
    index: int
    """Its place in Vulkan's own list, software renderers counted: the number that Vulkan's masks use."""
    name: str = ""
    uuid: str = ""
    vendor: str = ""
    kind: str = ""
    driver: str = ""

    @property
    def is_software(self) -> bool:
        return self.kind == "CPU" or any(word in f"{self.name} {self.driver}".lower() for word in _SOFTWARE)


class Heap(msgspec.Struct):
    """The memory of one device. The budget, where the driver tells one, is what a program may take now."""

    size_bytes: int = 0
    budget_bytes: int | None = None
    is_local: bool = False


def probe() -> Found:
    summary = isolated.ask(["vulkaninfo", "--summary"])
    gpus = parse_summary(summary.stdout)
    if not gpus and summary.failure:
        return Found(notes=[f"vulkan: vulkaninfo {summary.failure}"])
    if all(gpu.is_software for gpu in gpus):
        return Found()
    report = isolated.ask(["vulkaninfo"])
    return offered(gpus, parse_heaps(report.stdout), os.environ)


def parse_summary(text: str) -> list[Gpu]:
    """The devices in the output of `vulkaninfo --summary`."""
    found: list[tuple[int, dict[str, str]]] = []
    for line in text.splitlines():
        if head := _GPU.match(line):
            found.append((int(head[1]), {}))
        elif found and (pair := _PAIR.match(line)):
            found[-1][1].setdefault(pair[1], pair[2])
    return [
        Gpu(
            index=index,
            name=values.get("deviceName", ""),
            uuid=values.get("deviceUUID", ""),
            vendor=values.get("vendorID", "").lower(),
            kind=values.get("deviceType", "").removeprefix("PHYSICAL_DEVICE_TYPE_").removesuffix("_GPU"),
            driver=values.get("driverInfo") or values.get("driverVersion", ""),
        )
        for index, values in found
    ]


def parse_heaps(text: str) -> dict[int, Heap]:
    """
    By device, its largest own heap in the full output of `vulkaninfo`. Not their sum: the small second one that many
    GPUs show is a window into the first.
    """
    heaps: dict[int, list[Heap]] = {}
    gpu, heap = -1, None
    for line in text.splitlines():
        if head := _GPU.match(line):
            gpu, heap = int(head[1]), None
        elif _HEAP.match(line):
            heap = Heap()
            heaps.setdefault(gpu, []).append(heap)
        elif not line.startswith((" ", "\t")):
            heap = None
        elif heap is not None:
            _fill(heap, line)
    local = {gpu: [heap for heap in found if heap.is_local] for gpu, found in heaps.items()}
    return {gpu: max(found, key=lambda heap: heap.size_bytes) for gpu, found in local.items() if found}


def offered(gpus: list[Gpu], heaps: dict[int, Heap], env: Mapping[str, str]) -> Found:
    real = _once([gpu for gpu in gpus if not gpu.is_software])
    notes: list[str] = []
    kept = mask.visible(env.get("GGML_VK_VISIBLE_DEVICES"), real, lambda gpu, word: word == str(gpu.index))
    if len(kept) < len(real):
        notes.append(f"vulkan: GGML_VK_VISIBLE_DEVICES leaves {len(kept)} of {len(real)} devices")
    kept = _without_masked_vendors(kept, env, notes)
    discrete = [gpu for gpu in kept if gpu.kind != "INTEGRATED"]
    if discrete and len(discrete) < len(kept):
        # A job that asks for a GPU means the card, not the processor's graphics beside it.
        notes += [f"vulkan: {gpu.name} not offered beside a discrete GPU" for gpu in kept if gpu not in discrete]
        kept = discrete
    notes += [f"vulkan: the memory of {gpu.name} is not known" for gpu in kept if gpu.index not in heaps]
    return Found(
        devices=[_info(gpu, heaps.get(gpu.index, Heap())) for gpu in kept],
        driver=kept[0].driver if kept else "",
        unified_memory=bool(kept) and not discrete,
        notes=notes,
    )


def _info(gpu: Gpu, heap: Heap) -> DeviceInfo:
    return DeviceInfo(
        index=gpu.index,
        uuid=gpu.uuid,
        name=gpu.name,
        vram_gb=gib(heap.size_bytes),
        vram_free_gb=None if heap.budget_bytes is None else gib(min(heap.budget_bytes, heap.size_bytes)),
    )


def _fill(heap: Heap, line: str) -> None:
    if "MEMORY_HEAP_DEVICE_LOCAL_BIT" in line:
        heap.is_local = True
    elif pair := _PAIR.match(line):
        number = pair[2].split()[0]
        if pair[1] == "size" and number.isdigit():
            heap.size_bytes = int(number)
        elif pair[1] == "budget" and number.isdigit():
            heap.budget_bytes = int(number)


def _once(gpus: list[Gpu]) -> list[Gpu]:
    """Two drivers for one card show it twice, with one uuid."""
    seen: dict[str, Gpu] = {}
    for gpu in gpus:
        seen.setdefault(gpu.uuid or f"#{gpu.index}", gpu)
    return list(seen.values())


def _without_masked_vendors(gpus: list[Gpu], env: Mapping[str, str], notes: list[str]) -> list[Gpu]:
    """Vulkan does not know the vendors' masks, and what they hide must not come back by this door."""
    masks = {
        pci.NVIDIA: ("CUDA_VISIBLE_DEVICES",),
        pci.AMD: ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    }
    kept = []
    for gpu in gpus:
        reason = next((name for name in masks.get(gpu.vendor, ()) if name in env), "")
        if reason:
            notes.append(f"vulkan: {gpu.name} not offered, for {reason} is set")
        else:
            kept.append(gpu)
    return kept
