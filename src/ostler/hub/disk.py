"""How much room there is on the hub's disks. Below the reserve nothing new is taken in, so that there is room for what
runs already: its results, its logs, the rows about it."""

import asyncio
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric

from ostler.domain.errors import BadInput, NoSpace
from ostler.domain.quantities import MIB, parse_size

LOOK_S = 5.0
MOST_RESERVED = 1024 * MIB
PART_RESERVED = 0.05
"""Of a small disk, where the operator has not said how much."""

_log = logging.getLogger("ostler.hub")
Document = dict[str, Any]


class DiskSettings(msgspec.Struct, frozen=True):
    reserve: int | None = None
    """In bytes; None: a gibibyte, and of a small disk a twentieth."""


class Room(msgspec.Struct, frozen=True):
    """On the disk of one folder, in bytes."""

    folder: Path
    free: int
    total: int
    reserve: int

    @property
    def is_low(self) -> bool:
        return self.free < self.reserve

    def told(self) -> str:
        return (
            f"the disk of {self.folder} has {self.free // MIB} MiB free, and {self.reserve // MIB} MiB are kept for "
            "what runs already"
        )


def read_disk(table: Mapping[str, Any], where: str = "disk") -> DiskSettings:
    for key in table:
        if key != "reserve":
            raise BadInput(f"{where}.{key}: unknown key", [(f"{where}.{key}", "unknown key; known is reserve")])
    given = table.get("reserve")
    if given is None:
        return DiskSettings()
    if not isinstance(given, (str, int, float)):
        raise BadInput(f"{where}.reserve: not a size", [(f"{where}.reserve", "must be a size like '2g'")])
    return DiskSettings(parse_size(given, f"{where}.reserve"))


def room_at(folder: Path, settings: DiskSettings) -> Room:
    found = os.statvfs(folder)
    total = found.f_blocks * found.f_frsize
    usual = min(MOST_RESERVED, int(total * PART_RESERVED))
    return Room(folder, found.f_bavail * found.f_frsize, total, usual if settings.reserve is None else settings.reserve)


class Disk:
    """Looked at every few seconds, never while somebody waits."""

    def __init__(self, folders: Iterable[Path], settings: DiskSettings) -> None:
        by_disk = {folder.stat().st_dev: folder for folder in reversed(list(folders))}
        self._folders = list(reversed(by_disk.values()))
        self._settings = settings
        self._rooms: list[Room] = []
        self._was_low = False
        self.look()

    def look(self) -> None:
        self._rooms = [room_at(folder, self._settings) for folder in self._folders]
        low = next((room for room in self._rooms if room.is_low), None)
        if low is not None and not self._was_low:
            _log.warning("%s: submits are refused until there is room", low.told())
        elif low is None and self._was_low:
            _log.info("there is room on the disk again: submits are taken")
        self._was_low = low is not None

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await asyncio.to_thread(self.look)
            except OSError as error:
                _log.warning("the hub's disk cannot be looked at: %s", error)

    def refuse_if_low(self) -> None:
        """For whatever is new: a job, a snapshot."""
        for room in self._rooms:
            if room.is_low:
                raise NoSpace(f"{room.told()}; an operator makes room there, or lowers `reserve` under [disk]")

    def document(self) -> list[Document]:
        return [
            {
                "folder": str(room.folder),
                "free_bytes": room.free,
                "total_bytes": room.total,
                "reserve_bytes": room.reserve,
                "low": room.is_low,
            }
            for room in self._rooms
        ]

    def collect(self) -> Iterator[Metric]:
        free = GaugeMetricFamily("ostler_disk_free_bytes", "Free on the hub's disks", labels=["folder"])
        low = GaugeMetricFamily("ostler_disk_low", "Whether submits are refused for want of room", labels=["folder"])
        for room in self._rooms:
            free.add_metric([str(room.folder)], room.free)
            low.add_metric([str(room.folder)], room.is_low)
        yield free
        yield low
