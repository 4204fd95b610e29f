"""The machine's GPUs, looked at again and again by a process of its own: a driver that hangs holds nobody up."""

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from ostler.runtime.probe.usage import DeviceUsage
from ostler.worker import devices

READ_S = 5.0
EVERY_S = 20.0
BUSY_EVERY_S = 1.0
RELEASE_S = 10.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 0.5
GIVEN_UP_S = 60.0
"""A probe that failed is not asked again for this long."""

_log = logging.getLogger("ostler.worker")
_decode = msgspec.json.Decoder(list[DeviceUsage]).decode


class Reader(Protocol):
    async def read(self) -> list[DeviceUsage] | None:
        """None: nothing can be said right now."""
        ...

    async def close(self) -> None: ...


class Blind:
    """Where nothing can be read, or nothing needs to be."""

    async def read(self) -> list[DeviceUsage] | None:
        return None

    async def close(self) -> None:
        pass


class Probe:
    """The real one. Started at the first question."""

    def __init__(self, command: Sequence[str] | None = None) -> None:
        self._command = command or [sys.executable, "-P", "-m", "ostler.runtime.probe", "usage"]
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._not_before = 0.0

    async def read(self) -> list[DeviceUsage] | None:
        clock = asyncio.get_running_loop().time
        async with self._turn:
            if clock() < self._not_before:
                return None
            try:
                async with asyncio.timeout(READ_S):
                    return _decode(await self._ask())
            except (OSError, TimeoutError, EOFError, ValueError, msgspec.DecodeError) as error:
                _log.warning("what is on the GPUs cannot be read: %s", str(error) or type(error).__name__)
                self._not_before = clock() + GIVEN_UP_S
                self._kill()
                return None

    async def close(self) -> None:
        self._kill()
        if self._process is not None:
            # One that is stuck inside the driver is left behind.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), 1.0)

    async def _ask(self) -> bytes:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env=_environment(),
                start_new_session=True,
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(b"\n")
        line = await self._process.stdout.readline()
        if not line:
            raise EOFError("the probe has ended")
        return line

    def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()


class Gpus:
    """What the agent and the starts of tasks ask for."""

    def __init__(self, reader: Reader, *, release_s: float = RELEASE_S) -> None:
        self._reader = reader
        self._release_s = release_s

    @property
    def can_see(self) -> bool:
        return not isinstance(self._reader, Blind)

    async def baseline(self, indices: Sequence[int]) -> dict[int, int]:
        return devices.baseline(await self._reader.read() or [], indices)

    async def released(self, before: Mapping[int, int], task_id: str, attempt: str) -> list[DeviceUsage]:
        """The last look at these devices: when they were as before, or the time for that was over."""
        give_up_at = asyncio.get_running_loop().time() + self._release_s
        pause_s = FIRST_PAUSE_S
        while True:
            usages = await self._reader.read() or []
            is_over = asyncio.get_running_loop().time() + pause_s > give_up_at
            if is_over or not devices.left_behind(usages, before, task_id, attempt):
                return usages
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def watch(self, tell: Callable[[list[DeviceUsage]], None], in_use: Callable[[], bool]) -> None:
        """For ever, where there is anything to see: often while tasks hold devices, for their peaks."""
        told_at = -EVERY_S
        while self.can_see:
            now = asyncio.get_running_loop().time()
            if in_use() or now - told_at >= EVERY_S:
                told_at = now
                usages = await self._reader.read()
                if usages is not None:
                    tell(usages)
            await asyncio.sleep(BUSY_EVERY_S)

    async def close(self) -> None:
        await self._reader.close()


def _environment() -> dict[str, str]:
    """With the same ostler as here on the path, also when it runs from a checkout; all GPUs are looked at."""
    home = str(Path(__file__).resolve().parents[2])
    path = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([home, path] if path else [home])}
