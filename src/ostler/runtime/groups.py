"""A control group for each attempt that asked for memory, where the machine gives us a part of its groups to divide.

That is version 2, and a group that was handed to us: systemd says so by an attribute (`Delegate=yes`), and in a
container the root of what is seen is one's own. Anybody else's groups are left alone. A process is born in its group,
so that nothing of it was ever outside: we go there, start it, and come back; this process has one thread.

Which GPUs a task sees is told by its environment, not fenced here.

Standard library only: the supervisor imports this.
"""

import contextlib
import errno
import os
from collections.abc import Iterator

ROOT = "/sys/fs/cgroup"
OURS = "ostler"
"""The group of the worker and its supervisor themselves: one that has groups below it may hold no process."""
PREFIX = "task-"
MOST_PROCESSES = 32_768
MOVES = 10
MIB = 1024 * 1024
_ANYWHERE = contextlib.nullcontext()
_HANDED = ("user.delegate", "trusted.delegate")


class Groups:
    """`base` is the group that is divided; empty: there is none, and nothing is limited."""

    def __init__(self, base: str = "", controllers: frozenset[str] = frozenset()) -> None:
        self._base = base
        self._controllers = controllers

    @property
    def usable(self) -> bool:
        return bool(self._base)

    def inside(self, attempt: str, memory_mib: int) -> contextlib.AbstractContextManager[None]:
        """What is started meanwhile is in the attempt's own group. OSError if it cannot be limited as it should."""
        return self._inside(attempt, memory_mib) if self._base and memory_mib > 0 else _ANYWHERE

    @contextlib.contextmanager
    def _inside(self, attempt: str, memory_mib: int) -> Iterator[None]:
        group = f"{self._base}/{PREFIX}{attempt}"
        try:
            self._enter(group, memory_mib)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise
            self._enter(group, memory_mib)  # another supervisor of this worker has just begun: it removes what is empty
        try:
            yield
        finally:
            _write(f"{self._base}/{OURS}/cgroup.procs", "0")
            with contextlib.suppress(OSError):
                _write(f"{group}/memory.max", str(memory_mib * MIB))

    def _enter(self, group: str, memory_mib: int) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(group)
        limit = f"{group}/memory.max"
        _write(limit, str(memory_mib * MIB))
        _write(limit, "max")  # it can be limited, and is once we are out of there: we are not to be killed for it
        _write(f"{group}/memory.oom.group", "1")
        if "pids" in self._controllers:
            _write(f"{group}/pids.max", str(MOST_PROCESSES))
        _write(f"{group}/cgroup.procs", "0")

    def leave(self, attempt: str) -> None:
        """Nothing of it is left."""
        if self._base:
            with contextlib.suppress(OSError):
                os.rmdir(f"{self._base}/{PREFIX}{attempt}")

    def clean(self) -> None:
        """Those that a killed supervisor left, and that are empty by now."""
        for name in os.listdir(self._base) if self._base else ():
            if name.startswith(PREFIX):
                self.leave(name.removeprefix(PREFIX))


def open_groups(root: str = ROOT, own: str = "/proc/self/cgroup") -> Groups:
    """The part of the machine's groups that is ours to divide, divided into us and our tasks."""
    base = _handed(root, own)
    if not base:
        return Groups()
    try:
        controllers = frozenset(_read(f"{base}/cgroup.controllers").split()) & {"memory", "pids"}
        if "memory" not in controllers:
            return Groups()
        with contextlib.suppress(FileExistsError):
            os.mkdir(f"{base}/{OURS}")
        for _ in range(MOVES):
            if _divide(base, controllers):
                return Groups(base, controllers)
    except OSError:
        pass
    return Groups()


def _divide(base: str, controllers: frozenset[str]) -> bool:
    """All of ours into a group of their own, then the rest can be divided. False: somebody was born there meanwhile."""
    for pid in _read(f"{base}/cgroup.procs").split():
        with contextlib.suppress(ProcessLookupError):
            _write(f"{base}/{OURS}/cgroup.procs", pid)
    try:
        _write(f"{base}/cgroup.subtree_control", " ".join(f"+{name}" for name in sorted(controllers)))
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


def _handed(root: str, own: str) -> str:
    """Our group, if it was handed to us; else nothing."""
    lines = [line.partition("::")[2] for line in _read(own).splitlines() if line.startswith("0::")]
    if not lines or not os.path.exists(f"{root}/cgroup.controllers"):
        return ""
    path = lines[0].rstrip("/").removesuffix(f"/{OURS}")
    base = f"{root}{path}"
    # The root of the whole machine has no type; that of a container does.
    is_container = not path and os.path.exists(f"{root}/cgroup.type")
    return base if is_container or any(_attribute(base, name) == b"1" for name in _HANDED) else ""


def _attribute(path: str, name: str) -> bytes:
    try:
        return os.getxattr(path, name)
    except (OSError, AttributeError):
        return b""


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
