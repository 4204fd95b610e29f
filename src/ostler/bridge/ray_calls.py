"""Function calls on a Ray cluster, which are its tasks: one Ray job of ours, the driver, starts them for all.

A job each would cost a second or two of processor time, a task some milliseconds. What an attempt is does not depend on
it: the same script begins it once, whoever runs it. A driver that is gone has taken its tasks along; the next one is
given all that is not known to be over, and what has begun once does not begin again there.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import shlex
import shutil
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path

import msgspec

from ostler.bridge import ray_driver
from ostler.bridge.base import Fate, Refusal, Sight, Signal, Unanswered
from ostler.bridge.ray_driver import ASKED, DRIVER, OVER, STOP, UP
from ostler.bridge.ray_head import Document, Head, last_line
from ostler.bridge.record import Folder
from ostler.bridge.script import NOT_ITS_TURN
from ostler.runtime.clock import also_asleep

CALLS, PROGRAM = "calls", "driver.py"
LOOK_S = 0.1
DRIVER_LOOK_S = 2.0
LINGER_S = 60.0
"""How long an attempt whose Ray task is over may take to be seen gone. One that leaves nothing by then went with its
node."""
LATE_S = 5.0
"""What Ray says of its nodes may be this old."""
KNOWN_S = 60.0
"""What is over is told again for this long."""
MOST_FAILURES = 3
"""So many drivers that failed one after another, and none of whose calls ended."""
AS_JOBS_S = 600.0
"""For this long calls are Ray's jobs, where no driver starts."""
GONE = "the Ray job that runs calls is gone"

_log = logging.getLogger("ostler.bridge")


class Call(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What the driver is asked for; but for the script, in Ray's own words."""

    script: str
    name: str
    task: str = ""
    num_cpus: int = 0
    num_gpus: int = 0
    memory: int = 0
    resources: dict[str, float] = {}


class Told(msgspec.Struct, kw_only=True):
    """What the driver says of a task that is over."""

    code: int | None = None
    fate: Fate = "exited"
    reason: str = ""


class _Held(msgspec.Struct, kw_only=True):
    call: Call
    begun: bool = False
    over_since: float = 0.0
    """When its task was first seen over."""
    told_at: float = 0.0
    """When it was told that it is over."""

    @property
    def root(self) -> Path:
        return Path(self.call.script).parents[2]


_decode_call = msgspec.json.Decoder(Call).decode
_decode_told = msgspec.json.Decoder(Told).decode


class Calls:
    """`as_job` submits a call as a Ray job after all: its id, or why it was not taken."""

    def __init__(
        self,
        head: Head,
        folder: Path,
        prefix: str,
        python: str,
        as_job: Callable[[Call], Awaitable[str | Refusal | None]],
    ) -> None:
        self._head = head
        self._folder = folder / CALLS
        self.prefix = prefix
        self._python = python
        self._as_job = as_job
        self._held: dict[str, _Held] = {}
        self._driver = ""
        self._driver_look_at = 0.0
        self._failures = 0
        self._jobs_until = 0.0
        self._ended: deque[tuple[float, Call]] = deque()

    def load(self) -> None:
        """What an earlier process of the bridge has left."""
        for attempt in ray_driver.names(str(self._folder / ASKED)):
            with contextlib.suppress(OSError, msgspec.DecodeError):
                self._held[attempt] = _Held(call=_decode_call((self._folder / ASKED / attempt).read_bytes()))
        with contextlib.suppress(OSError):
            self._driver = (self._folder / DRIVER).read_text().strip()

    def __contains__(self, attempt: str) -> bool:
        return attempt in self._held

    @property
    def takes(self) -> bool:
        return also_asleep() >= self._jobs_until

    @property
    def hurry(self) -> bool:
        return any(not held.told_at for held in self._held.values())

    def in_doubt(self) -> list[Call]:
        """Those that Ray may count as going though they have not begun, or not any more."""
        late = also_asleep() - LATE_S
        while self._ended and self._ended[0][0] < late:
            self._ended.popleft()
        waiting = [held.call for held in self._held.values() if not held.begun and not held.told_at]
        return [*waiting, *(call for _, call in self._ended)]

    async def submit(self, calls: dict[str, Call]) -> None:
        if not calls:
            return
        await asyncio.to_thread(self._write, ASKED, {name: msgspec.json.encode(call) for name, call in calls.items()})
        if not self.hurry:
            self._driver_look_at = 0.0
        self._held |= {name: _Held(call=call) for name, call in calls.items()}

    async def look(self, attempts: Collection[str]) -> dict[str, Sight]:
        await self._see_to_the_driver()
        asked = [name for name in attempts if name in self._held]
        found = await asyncio.to_thread(self._sights, asked)
        await self._forget([name for name, held in self._held.items() if held.told_at and name not in found])
        return found

    async def adopt(self) -> dict[str, Sight]:
        found = await asyncio.to_thread(self._sights, list(self._held))
        old = also_asleep() - KNOWN_S
        await self._forget([name for name, held in self._held.items() if 0 < held.told_at < old])
        return found

    async def stop(self, attempts: Collection[str], signal: Signal) -> None:
        word = (signal or "END").encode()
        await asyncio.to_thread(self._write, STOP, dict.fromkeys(attempts, word))

    # The driver

    async def _see_to_the_driver(self) -> None:
        """One at a time: whether it is gone, Ray says."""
        now = also_asleep()
        if now < self._driver_look_at or all(held.told_at or held.over_since for held in self._held.values()):
            return
        self._driver_look_at = now + DRIVER_LOOK_S
        if self._driver:
            status, told = await self._head.ask("GET", f"/api/jobs/{self._driver}")
            if status not in (200, 404):
                raise Unanswered(f"{self._driver}: {status}: {last_line(told)}")
            state = str(told.get("status")) if status == 200 else "unknown to Ray"
            if state in ("PENDING", "RUNNING"):
                return
            if state == "FAILED" and await self._is_hopeless(told):
                return
            _log.info("%s (%s): another is started", GONE, state)
        await self._start()

    async def _start(self) -> None:
        await asyncio.to_thread(self._succeed)
        words = [self._python, str(self._folder / PROGRAM), str(self._folder), self._driver]
        line = " ".join(shlex.quote(word) for word in words)
        status, told = await self._head.ask("POST", "/api/jobs/", {"entrypoint": line, "submission_id": self._driver})
        if status != 200:
            raise Unanswered(f"the Ray job that runs calls was not taken: {last_line(told)}")

    def _succeed(self) -> list[str]:
        """Another takes the place of the one before, whose name is known before it is there: nothing that it does may
        be done in vain. What the one before has begun is over, and not asked for again."""
        before, self._driver = self._driver, f"{self.prefix}{secrets.token_hex(4)}"
        begun = [name for name, held in self._held.items() if Folder(held.root).began_at(name)]
        self._write(OVER + self._driver, dict.fromkeys(begun, msgspec.json.encode(Told(code=NOT_ITS_TURN))))
        source = Path(sys.modules[ray_driver.__name__].__file__ or "")
        self._write("", {PROGRAM: source.read_bytes(), DRIVER: self._driver.encode()})
        if before:
            shutil.rmtree(self._folder / (OVER + before), ignore_errors=True)
            (self._folder / (UP + before)).unlink(missing_ok=True)
        return begun

    async def _is_hopeless(self, told: Document) -> bool:
        """Where no driver starts, or none lasts, calls are jobs for a while."""
        was_up = await asyncio.to_thread((self._folder / (UP + self._driver)).exists)
        self._failures += 1
        if was_up and self._failures < MOST_FAILURES:
            return False
        self._jobs_until = also_asleep() + AS_JOBS_S
        said = last_line(told.get("message") or "")
        why = "no driver for them runs, for which --ray-python must name Ray's own Python"
        _log.warning("calls are jobs of Ray's for %.0f s, which is slow: %s (%s)", AS_JOBS_S, why, said)
        begun = await asyncio.to_thread(self._succeed)
        for attempt, held in list(self._held.items()):
            if not held.told_at and attempt not in begun and isinstance(await self._as_job(held.call), str):
                await self._forget([attempt])
        self._failures = 0
        return True

    # The folder

    def _sights(self, attempts: Sequence[str]) -> dict[str, Sight]:
        over = set(ray_driver.names(str(self._folder / (OVER + self._driver)))) if self._driver else set()
        return {attempt: self._sight(attempt, attempt in over) for attempt in attempts}

    def _sight(self, attempt: str, is_over: bool) -> Sight:
        held = self._held[attempt]
        files = Folder(held.root)
        if not held.begun:
            held.begun = bool(files.began_at(attempt))
        told = self._told(attempt) if is_over else None
        if told is None:
            return Sight(phase="running") if held.begun else Sight(phase="waiting", reason="waiting for resources")
        now = also_asleep()
        held.over_since = held.over_since or now
        if held.begun and files.exit(attempt) is None and now < held.over_since + LINGER_S:
            return Sight(phase="running", reason="its last processes are being ended")
        if not held.told_at:
            held.told_at = now
            self._ended.append((now, held.call))
        found = sight(told, began=held.begun)
        if found.fate == "exited":
            self._failures = 0
        return found

    def _told(self, attempt: str) -> Told | None:
        try:
            return _decode_told((self._folder / (OVER + self._driver) / attempt).read_bytes())
        except (OSError, msgspec.DecodeError):
            return None

    def _write(self, kind: str, files: dict[str, bytes]) -> None:
        folder = self._folder / kind
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, content in files.items():
            part = folder / f"{name}.part"
            part.write_bytes(content)
            part.replace(folder / name)

    async def _forget(self, attempts: Collection[str]) -> None:
        if attempts:
            await asyncio.to_thread(self._remove, attempts)
            for attempt in attempts:
                self._held.pop(attempt, None)

    def _remove(self, attempts: Collection[str]) -> None:
        """What was asked goes first: it would be done again."""
        for attempt in attempts:
            for kind in (ASKED, STOP, OVER + self._driver):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._folder / kind / attempt)


def sight(told: Told, *, began: bool) -> Sight:
    if told.code == NOT_ITS_TURN and began:  # by a task of an earlier driver's, with which it went
        return Sight(phase="over", fate="handed back", reason=GONE)
    code = 128 - told.code if told.code is not None and told.code < 0 else told.code
    return Sight(phase="over", fate=told.fate, reason=told.reason, exit_code=code)
