"""What this worker offers: from a file, or detected at the start and now and then again."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec

from ostler.domain.worker import Capabilities
from ostler.runtime.probe import Detection, detect, load_offer

DETECT_EVERY_S = 60.0


class Source(msgspec.Struct, kw_only=True):
    """`look` blocks, for seconds if a driver hangs: call it in a thread."""

    folder: Path
    file: Path | None = None
    labels: dict[str, str] = {}

    def look(self) -> Detection:
        found = Detection(capabilities=load_offer(self.file)) if self.file else detect(folder=self.folder)
        found.capabilities.labels = {**found.capabilities.labels, **self.labels}
        if self.file is None:
            # Our own tasks are part of what the driver sees in use, and it is old by the time that they have ended.
            for device in found.capabilities.devices:
                device.vram_free_gb = None
        return found


class Steadied:
    """
    Free memory may change at once, but devices come and go only when two looks in a row agree: a driver that was
    too busy to answer once must not make the hub believe that its GPUs are gone.
    """

    def __init__(self, first: Capabilities) -> None:
        self.current = first
        self._candidate: object = None

    def update(self, seen: Capabilities) -> Capabilities:
        changed = _hardware(seen) != _hardware(self.current)
        if changed and self._candidate != _hardware(seen):
            self._candidate = _hardware(seen)
            return self.current
        self._candidate = None
        self.current = seen
        return seen


def _hardware(capabilities: Capabilities) -> object:
    devices = [(device.index, device.uuid, device.vram_gb) for device in capabilities.devices]
    return capabilities.gpu_backend, capabilities.gpu_count, devices


async def watch(
    source: Source, first: Capabilities, tell: Callable[[Capabilities], None], every_s: float = DETECT_EVERY_S
) -> None:
    """Look again and again; an offer from a file is constant."""
    if source.file is not None:
        await asyncio.Event().wait()
    steadied = Steadied(first)
    while True:
        await asyncio.sleep(every_s)
        before = steadied.current
        if steadied.update((await asyncio.to_thread(source.look)).capabilities) != before:
            tell(steadied.current)


def default_slots(capabilities: Capabilities) -> int:
    """As many tasks as there are cores, and one where there is less than one."""
    return max(1, int(capabilities.cpu_count))


def is_nvidia(source: Source, capabilities: Capabilities) -> bool:
    """Whether what is on the GPUs can be read: there are some, they are NVIDIA's, and no file stands for them."""
    return source.file is None and capabilities.gpu_backend == "nvidia" and bool(capabilities.devices)
