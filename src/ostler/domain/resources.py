"""What a task needs and what a worker has, in the whole numbers that the core counts in."""

from collections.abc import Mapping

import msgspec

from ostler.domain.gpu_names import is_named
from ostler.domain.labels import Constraint

POOLS = ("batch", "service")
BACKENDS = ("cpu", "nvidia", "metal", "vulkan", "rocm", "tpu")


class Request(msgspec.Struct, frozen=True, omit_defaults=True):
    """The needs of one task. Equal requests are one shape: to the matcher they are interchangeable."""

    gpu_count: int = 0
    gpu_type: str = ""
    """Lower case; several that will do are joined by `|`, in order."""
    backend: str = ""
    vram_mib: int = 0
    gpu_milli: int = 0
    """A part of one device whatever its size, in thousandths."""
    cores_milli: int = 0
    memory_mib: int = 0
    pool: str = "batch"
    labels: tuple[Constraint, ...] = ()
    prefer: tuple[Constraint, ...] = ()
    nodes: int = 1
    """Workers that are needed at once, each for one task of this request."""
    model: str = ""
    """What hosts' lists of allowed and denied jobs name."""
    allowed_hosts: tuple[str, ...] = ()
    denied_hosts: tuple[str, ...] = ()
    prefers_cuda: bool = False
    """On a CUDA worker it takes one whole GPU, elsewhere none."""
    cuda_first_s: float = 0.0
    """Until it has waited this long, a request that prefers CUDA is closed to all other workers; 0: open to all."""
    attended: bool = False
    """Only a worker that holds a connection can run it: a service, a gang, a function, files that are brought first."""
    extended: bool = False
    """Only a worker that speaks version 2 of the protocol can run it: a model, a function, a task with secrets or
    outputs, or one that stops by itself when it loses contact."""

    @property
    def shares_gpu(self) -> bool:
        """No whole GPU, but an amount or a part of one device's memory."""
        return self.gpu_count == 0 and (self.vram_mib > 0 or self.gpu_milli > 0)

    @property
    def uses_gpu(self) -> bool:
        return self.gpu_count > 0 or self.vram_mib > 0 or self.gpu_milli > 0 or self.prefers_cuda

    def accepts_type(self, gpu_type: str, gpu_names: tuple[str, ...] = ()) -> bool:
        return not self.gpu_type or is_named(self.gpu_type, (gpu_type, *gpu_names))

    def share_mib(self, device: "Device") -> int:
        """What a share takes of this device. Parts are cut, never rounded up: three thirds fit one device. 0: it cannot
        be shared, for nobody knows how much it has."""
        part = device.vram_mib * self.gpu_milli // 1000
        return max(1, self.vram_mib, part) if device.vram_mib else 0

    def on(self, offer: "Offer") -> "Request":
        """What it needs on such a worker, where that depends on the worker."""
        if not self.prefers_cuda:
            return self
        if offer.has_cuda:
            return msgspec.structs.replace(self, gpu_count=1)
        return msgspec.structs.replace(self, vram_mib=0, gpu_milli=0) if self.shares_gpu else self


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
    free_mib: int | None = None
    """What the worker last saw free there, whoever holds the rest; None: it does not say."""

    @property
    def usable_mib(self) -> int:
        return 0 if self.quarantine else max(0, self.vram_mib - self.outside_mib)

    def seen_free(self, mib: int) -> int:
        """Of that much, what was seen to be free."""
        return mib if self.free_mib is None else min(mib, self.free_mib)


class Offer(msgspec.Struct, frozen=True):
    """What a worker has when nothing runs on it."""

    backend: str = "cpu"
    gpu_type: str = ""
    """The short one: A100."""
    gpu_names: tuple[str, ...] = ()
    """Longer names of the same GPUs, which a request may use as well."""
    devices: tuple[Device, ...] = ()
    cores_milli: int = 0
    memory_mib: int = 0
    labels: Mapping[str, str] = {}
    available_mib: int | None = None
    """Memory that the worker last saw available, whoever holds the rest; None: it does not say."""
    hostname: str = ""
    allow_jobs: tuple[str, ...] = ()
    deny_jobs: tuple[str, ...] = ()
    claims: bool = False
    """It holds no connection: it asks for one task at a time."""
    is_plain: bool = False
    """It speaks version 1 of the worker protocol, without extensions."""

    @property
    def has_cuda(self) -> bool:
        return self.backend == "nvidia" and bool(self.devices)

    def at_best(self) -> "Offer":
        """As it is when nobody outside takes anything and every device is clean."""
        taken = any(device.outside_mib or device.quarantine or device.free_mib is not None for device in self.devices)
        if not taken and self.available_mib is None:
            return self
        clean = tuple(Device(one.index, one.vram_mib, one.uuid, one.name) for one in self.devices)
        return msgspec.structs.replace(self, devices=clean, available_mib=None)
