"""Real tasks for the tests of the process runtime, and ways to wait for them without sleeping."""

import asyncio
import os
import sys
from pathlib import Path

import psutil

from ostler.runtime.base import Ended, Launch, Runtime

PATH = os.environ.get("PATH", os.defpath)
WAIT_S = 60.0
A, B = f"a-{os.getpid()}", f"b-{os.getpid()}"
"""Attempts are known by their names on the whole machine, and other tests run beside these."""


def launch(attempt: str, *argv: str, **more: object) -> Launch:
    env = {"PATH": PATH, "OSTLER_ATTEMPT": attempt}
    return Launch(attempt=attempt, task_id=f"task-of-{attempt}", **{"argv": list(argv), "env": env, **more})  # type: ignore[arg-type]


def shell(attempt: str, script: str, **more: object) -> Launch:
    return launch(attempt, "sh", "-c", script, **more)


def python(attempt: str, script: str, **more: object) -> Launch:
    return launch(attempt, sys.executable, "-SsE", "-c", script, **more)


HOSTILE = """
import os, signal, sys, time
post, pids = sys.argv[1], []
signal.signal(signal.SIGTERM, signal.SIG_IGN)
reader, writer = os.pipe()

def tell():
    os.write(writer, b"%d\\n" % os.getpid())

def daemon(forget_everything):
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir("/")
    os.closerange(0, 3)
    if forget_everything:
        os.dup2(writer, 9)
        os.execve("/bin/sh", ["sh", "-c", "echo $$ >&9; exec 9>&-; while :; do sleep 0.2; done"], {})
    tell()
    child = os.fork()
    if not child:
        tell()
    while True:
        time.sleep(60)

daemon(False)
daemon(True)
if not os.fork():
    os.setpgid(0, 0)
    tell()
    while True:
        time.sleep(60)
tell()
text = b""
while text.count(b"\\n") < 5:
    text += os.read(reader, 4096)
with open(post, "wb") as file:
    file.write(text)
"""
"""Five processes that ignore SIGTERM; two are daemons, and one of those has shed its environment too."""


class Ends:
    """Collects a runtime's ends as they come."""

    def __init__(self, runtime: Runtime) -> None:
        self.seen: list[Ended] = []
        self._more = asyncio.Event()
        self._task = asyncio.create_task(self._collect(runtime))

    async def of(self, attempt: str) -> Ended:
        async with asyncio.timeout(WAIT_S):
            while True:
                for end in self.seen:
                    if end.attempt == attempt:
                        return end
                self._more.clear()
                await self._more.wait()

    async def finished(self) -> None:
        async with asyncio.timeout(WAIT_S):
            await self._task

    async def _collect(self, runtime: Runtime) -> None:
        async for end in runtime.ends():
            self.seen.append(end)
            self._more.set()


class Signpost:
    """A named pipe by which a task says that it has come to some point, or is told that it may go on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        # Both ends: neither side ever waits for the other to come, only for what it says.
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    async def read(self) -> str:
        """What the task wrote, in one go."""
        async with asyncio.timeout(WAIT_S):
            await _readable(self._pipe)
            return os.read(self._pipe, 65536).decode()

    def write(self, text: str) -> None:
        os.write(self._pipe, text.encode())


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


def processes_of(attempt: str) -> list[int]:
    """By their environment; independent of the code under test."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("OSTLER_ATTEMPT") == attempt and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def gone(pid: int) -> None:
    """Wait until a process that is no child of ours has ended, whether or not anyone has asked how."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        async with asyncio.timeout(WAIT_S):
            await _readable(descriptor)
    finally:
        os.close(descriptor)


def supervisor_pid(folder: Path) -> int:
    return int((folder / "supervisor.lock").read_text())
