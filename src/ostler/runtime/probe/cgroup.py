"""What the control groups leave of a machine. Inside a container the kernel reports the host's cores and memory."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import msgspec

_MOUNT = "sys/fs/cgroup"


class Limits(msgspec.Struct, frozen=True):
    """None: no limit there."""

    cores: float | None = None
    memory_bytes: int | None = None
    headroom_bytes: int | None = None
    """What is left under the tightest memory limit; page cache that can be dropped counts as left."""


def limits(root: Path = Path("/")) -> Limits:
    """The tightest limit on the way from this process's groups to their roots, in version 1, version 2 or both."""
    cores: list[float] = []
    memory: list[int] = []
    headroom: list[int] = []
    for group in _groups(root):
        cores += _quotas(group) + _cpusets(group)
        for limit, left in _memory(group):
            memory.append(limit)
            headroom.append(left)
    return Limits(min(cores, default=None), min(memory, default=None), min(headroom, default=None))


def count_cpus(text: str) -> int:
    """'0-3,7' is five."""
    total = 0
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.strip().isdigit():
            total += int(last or first) - int(first) + 1
    return total


def _groups(root: Path) -> Iterator[Path]:
    """
    Every folder that limits this process. Within a container the path may be the host's and the mount
    already the container's own group: what is not there is passed over, and the mount itself always counts.
    """
    mount = root / _MOUNT
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers:
            bases = [mount / name for name in {controllers, *controllers.split(",")}]
        else:
            bases = [mount, mount / "unified"]
        own = PurePosixPath(path.lstrip("/"))
        for base in bases:
            for group in (own, *own.parents):
                if ".." not in group.parts and (base / group).is_dir():
                    yield base / group


def _quotas(group: Path) -> list[float]:
    quota, _, period = _read(group / "cpu.max").strip().partition(" ")
    if not quota:
        quota, period = _read(group / "cpu.cfs_quota_us").strip(), _read(group / "cpu.cfs_period_us").strip()
    if quota.isdigit() and period.isdigit() and int(period):
        return [int(quota) / int(period)]
    return []


def _cpusets(group: Path) -> list[float]:
    names = ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus")
    counts = [count_cpus(_read(group / name)) for name in names]
    return [float(count) for count in counts if count]


def _memory(group: Path) -> list[tuple[int, int]]:
    for limit_name, used_name, cache_name in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit = _read(group / limit_name).strip()
        if limit.isdigit():
            used = _read(group / used_name).strip()
            cache = _stat(_read(group / "memory.stat"), cache_name)
            return [(int(limit), max(int(limit) - max(int(used or 0) - cache, 0), 0))]
    return []


def _stat(text: str, name: str) -> int:
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""
