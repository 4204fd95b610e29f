"""What processes there are on this machine, from /proc or, where there is none, from `ps`.

Standard library only: the supervisor imports this.
"""

import contextlib
import os
import signal
import sys
import time
from typing import NamedTuple, Protocol

_VARIABLE = b"OSTLER_ATTEMPT="


class Process(NamedTuple):
    """One process; `start` tells it apart from a later one with the same pid."""

    pid: int
    parent: int
    group: int
    session: int
    start: int
    zombie: bool
    """Gone, all of its threads; only its parent has not asked yet, and some parents never do."""


class ProcessTable(Protocol):
    second: int
    """How many units of `start` there are in a second."""
    adopts: bool
    """Orphans below this process become its children, so that nothing below it can ever get away."""
    sees_children: bool
    """`has_children` is cheap, and nothing escapes it."""
    tells_memory: bool
    """`memory` knows something."""
    boot: str
    """Pids and starts mean something only within one boot of the machine."""

    def clock(self) -> int:
        """What `start` would be of a process that starts now."""
        ...

    def children(self) -> list[int]: ...

    def has_children(self, pid: int) -> bool: ...

    def one(self, pid: int) -> Process | None: ...

    def all(self) -> dict[int, Process]: ...

    def attempt_in_environment(self, pid: int) -> str: ...

    def attempts_in_environments(self) -> dict[int, str]:
        """The same for every process that has one, at once."""
        ...

    def places(self, pid: int) -> list[str]:
        """Its working directory and where its output goes."""
        ...

    def memory(self, pid: int) -> tuple[int, int]:
        """What it holds in memory, in KiB: by itself, and of files and memory that others may hold too."""
        ...

    def cpu_s(self, pid: int) -> float:
        """How much processor time it has taken, with the children that it has waited for."""
        ...

    def send(self, process: Process, number: int) -> bool:
        """Signal exactly this process, never a later one that got its pid. False if it is gone or not ours."""
        ...


def open_table() -> ProcessTable:
    return ProcTable() if os.path.exists("/proc/self/stat") else PsTable()


class ProcTable:
    """Linux."""

    tells_memory = True

    def __init__(self) -> None:
        self.adopts = _become_subreaper()
        # A container that starts anew numbers its processes anew, within the same boot.
        self.boot = _read("/proc/sys/kernel/random/boot_id").decode().strip() + os.readlink("/proc/self/ns/pid")
        self.second = os.sysconf("SC_CLK_TCK")
        self._page_kib = os.sysconf("SC_PAGE_SIZE") // 1024
        try:
            # This process has one thread, so the list of that thread's children is the list of its children.
            self._children = os.open(f"/proc/self/task/{os.getpid()}/children", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._children = -1  # a kernel built without it
        self.sees_children = self._children >= 0

    def clock(self) -> int:
        return int(time.clock_gettime(time.CLOCK_BOOTTIME) * self.second)

    def children(self) -> list[int]:
        if self._children < 0:
            me = os.getpid()
            return [process.pid for process in self.all().values() if process.parent == me]
        # Complete although children come and go: only we reap them, and we are here.
        text, size = b"", 4096
        while len(text := os.pread(self._children, size, 0)) == size:
            size *= 4
        return [int(pid) for pid in text.split()]

    def has_children(self, pid: int) -> bool:
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:
            return False
        return any(_read(f"/proc/{pid}/task/{thread}/children") for thread in threads)

    def one(self, pid: int) -> Process | None:
        text = _read(f"/proc/{pid}/stat")
        if not text:
            return None
        # The name, in brackets, may hold anything, brackets and spaces too.
        state, parent, group, session, *more = text[text.rindex(b")") + 2 :].split()
        threads, start = int(more[13]), int(more[15])
        return Process(pid, int(parent), int(group), int(session), start, state in b"ZX" and threads <= 1)

    def all(self) -> dict[int, Process]:
        found = (self.one(int(name)) for name in os.listdir("/proc") if name.isdecimal())
        return {process.pid: process for process in found if process}

    def attempt_in_environment(self, pid: int) -> str:
        for entry in _read(f"/proc/{pid}/environ").split(b"\0"):
            if entry.startswith(_VARIABLE):
                return os.fsdecode(entry[len(_VARIABLE) :])
        return ""

    def attempts_in_environments(self) -> dict[int, str]:
        pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
        return {pid: attempt for pid in pids if (attempt := self.attempt_in_environment(pid))}

    def places(self, pid: int) -> list[str]:
        found = []
        for name in ("cwd", "fd/1", "fd/2"):
            with contextlib.suppress(OSError):
                found.append(os.readlink(f"/proc/{pid}/{name}"))
        return found

    def memory(self, pid: int) -> tuple[int, int]:
        pages = _read(f"/proc/{pid}/statm").split()
        if len(pages) < 3:
            return 0, 0
        resident, shared = int(pages[1]), int(pages[2])
        return (resident - shared) * self._page_kib, shared * self._page_kib

    def cpu_s(self, pid: int) -> float:
        text = _read(f"/proc/{pid}/stat")
        if not text:
            return 0.0
        return sum(map(int, text[text.rindex(b")") + 2 :].split()[11:15])) / self.second

    def send(self, process: Process, number: int) -> bool:
        try:
            # The descriptor holds on to one process; if that one has the right start, it is the right one.
            descriptor = os.pidfd_open(process.pid)
        except ProcessLookupError:
            return False
        except (OSError, AttributeError):
            descriptor = -1  # an old kernel: nearly as sure without
        try:
            now = self.one(process.pid)
            if now is None or now.start != process.start:
                return False
            if descriptor < 0:
                os.kill(process.pid, number)
            else:
                signal.pidfd_send_signal(descriptor, number)
        except OSError:
            return False
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        return True


class PsTable:
    """Any other Unix: no adoption, so what a task leaves behind is found by session, group and environment."""

    second = 1
    adopts = False
    sees_children = False
    tells_memory = False
    boot = ""

    def clock(self) -> int:
        return int(time.time())

    def children(self) -> list[int]:
        me = os.getpid()
        return [process.pid for process in self.all().values() if process.parent == me]

    def has_children(self, pid: int) -> bool:
        return any(process.parent == pid for process in self.all().values())

    def one(self, pid: int) -> Process | None:
        return self.all().get(pid)

    def all(self) -> dict[int, Process]:
        return {process.pid: process for process in map(_parse_ps, _ps("-axo", _PS_COLUMNS))}

    def attempt_in_environment(self, pid: int) -> str:
        return self.attempts_in_environments().get(pid, "")

    def attempts_in_environments(self) -> dict[int, str]:
        found = {}
        for line in _ps(*_PS_ENVIRONMENTS):
            pid, _, words = line.strip().partition(" ")
            for word in words.split():
                if word.startswith(_VARIABLE.decode()):
                    found[int(pid)] = word[len(_VARIABLE) :]
        return found

    def places(self, pid: int) -> list[str]:
        return []

    def memory(self, pid: int) -> tuple[int, int]:
        return 0, 0

    def cpu_s(self, pid: int) -> float:
        return 0.0

    def send(self, process: Process, number: int) -> bool:
        try:
            os.kill(process.pid, number)
        except OSError:
            return False
        return True


_PS_COLUMNS = "pid=,ppid=,pgid=,sess=,stat=,lstart="
_PS_ENVIRONMENTS = ("-axwwEo", "pid=,command=") if sys.platform == "darwin" else ("axeww", "-o", "pid=,args=")


def _ps(*options: str) -> list[str]:
    import subprocess

    with subprocess.Popen(
        ("ps", *options), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, "LC_ALL": "C"}
    ) as ps:
        assert ps.stdout is not None
        text = ps.stdout.read().decode(errors="replace")
    return [line for line in text.splitlines() if line.split(maxsplit=1)[:1] != [str(ps.pid)]]


def _parse_ps(line: str) -> Process:
    pid, parent, group, session, state, start = line.split(maxsplit=5)
    # Some systems print the session as an address or as 0; the group says as much there.
    number = int(session) if session.isdecimal() else 0
    started = time.mktime(time.strptime(start.strip(), "%a %b %d %H:%M:%S %Y"))
    return Process(int(pid), int(parent), int(group), number or int(group), int(started), state.startswith("Z"))


def _become_subreaper() -> bool:
    import ctypes

    set_child_subreaper = 36
    try:
        return bool(ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def _read(path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        text = b""
        while part := os.read(descriptor, 1 << 16):
            text += part
        return text
    except OSError:
        return b""  # it ended while we looked
    finally:
        os.close(descriptor)
