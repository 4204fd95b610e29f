"""What one owner takes of a worker.

Plain classes, not structs: they are read many times for each decision, and the compiled core reads these at once.
"""

from typing import Final

from ostler.domain.resources import Request


class Grant:
    """The GPUs of one placement: whole devices, or a share of one device's memory. Never changed."""

    __slots__ = ("devices", "share_mib")

    def __init__(self, devices: tuple[int, ...] = (), share_mib: int = 0) -> None:
        self.devices = devices
        self.share_mib = share_mib
        """0: the devices are held whole."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Grant) and (self.devices, self.share_mib) == (other.devices, other.share_mib)

    def __hash__(self) -> int:
        return hash((self.devices, self.share_mib))

    def __repr__(self) -> str:
        return f"Grant(devices={self.devices!r}, share_mib={self.share_mib})"


NO_GPUS: Final = Grant()


class Holding:
    """Never changed."""

    __slots__ = ("cores_milli", "grant", "memory_mib", "pool")

    def __init__(self, cores_milli: int = 0, memory_mib: int = 0, pool: str = "batch", grant: Grant = NO_GPUS) -> None:
        self.cores_milli = cores_milli
        self.memory_mib = memory_mib
        self.pool = pool
        self.grant = grant

    def _parts(self) -> tuple[int, int, str, Grant]:
        return (self.cores_milli, self.memory_mib, self.pool, self.grant)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Holding) and self._parts() == other._parts())

    def __hash__(self) -> int:
        return hash(self._parts())

    def __repr__(self) -> str:
        held = f"cores_milli={self.cores_milli}, memory_mib={self.memory_mib}, pool={self.pool!r}"
        return f"Holding({held}, grant={self.grant!r})"


NOTHING: Final = Holding(pool="")
"""Of one that has no process here: it is yet to begin, or what it had is another's already."""


def holding(request: Request, grant: Grant) -> Holding:
    return Holding(request.cores_milli, request.memory_mib, request.pool, grant)
