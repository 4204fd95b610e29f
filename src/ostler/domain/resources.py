"""What a task needs and what a worker has, in the whole numbers that the core counts in."""

from collections.abc import Mapping

import msgspec

from ostler.domain.labels import Constraint

POOLS = ("batch", "service")
BACKENDS = ("cpu", "nvidia", "metal", "vulkan", "rocm", "tpu")


class Request(msgspec.Struct, frozen=True):
    """The needs of one task. Equal requests are one shape: to the matcher they are interchangeable."""

    gpu_count: int = 0
    gpu_type: str = ""
    backend: str = ""
    vram_mib: int = 0
    cores_milli: int = 0
    memory_mib: int = 0
    pool: str = "batch"
    labels: tuple[Constraint, ...] = ()
    prefer: tuple[Constraint, ...] = ()
    nodes: int = 1
    """Workers that are needed at once, each for one task of this request."""

    @property
    def shares_gpu(self) -> bool:
        """No whole GPU, but an amount of one device's memory."""
        return self.gpu_count == 0 and self.vram_mib > 0

    @property
    def uses_gpu(self) -> bool:
        return self.gpu_count > 0 or self.vram_mib > 0


class Device(msgspec.Struct, frozen=True):
    index: int
    vram_mib: int
    uuid: str = ""
    name: str = ""
    outside_mib: int = 0
    """Of its memory, what programs outside Ostler have taken for now."""
    outside: str = ""
    quarantine: str = ""
    """Why it may not be granted for now."""

    @property
    def usable_mib(self) -> int:
        return 0 if self.quarantine else max(0, self.vram_mib - self.outside_mib)


class Offer(msgspec.Struct, frozen=True):
    """What a worker has when nothing runs on it."""

    backend: str = "cpu"
    gpu_type: str = ""
    devices: tuple[Device, ...] = ()
    cores_milli: int = 0
    memory_mib: int = 0
    labels: Mapping[str, str] = {}

    def at_best(self) -> "Offer":
        """As it is when nobody outside takes anything and every device is clean."""
        if not any(device.outside_mib or device.quarantine for device in self.devices):
            return self
        clean = tuple(Device(one.index, one.vram_mib, one.uuid, one.name) for one in self.devices)
        return msgspec.structs.replace(self, devices=clean)


class Grant(msgspec.Struct, frozen=True):
    """The GPUs of one placement: whole devices, or a share of one device's memory."""

    devices: tuple[int, ...] = ()
    share_mib: int = 0
    """0: the devices are held whole."""
