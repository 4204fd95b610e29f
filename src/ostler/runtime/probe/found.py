"""What one hardware probe tells: the document that travels from its process to the worker."""

import msgspec

from ostler.domain.worker import DeviceInfo


class Found(msgspec.Struct, kw_only=True, omit_defaults=True):
    devices: list[DeviceInfo] = []
    driver: str = ""
    cuda: str = ""
    """The newest version of CUDA that the driver supports."""
    unified_memory: bool = False
    """The devices have no memory of their own: what they take, the machine loses."""
    notes: list[str] = []
    """What could not be probed, and why."""


def gib(size_bytes: int) -> float:
    """Whole MiB only, which a float holds exactly: rounding must never offer more than there is."""
    return max(size_bytes, 0) // 2**20 / 1024
