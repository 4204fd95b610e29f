"""Tasks as processes of this machine, kept by a supervisor that outlives the worker."""

import asyncio
import contextlib
import logging
import os
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ostler.runtime import attempts
from ostler.runtime.base import Ended, Held, Launch
from ostler.runtime.clock import also_asleep
from ostler.runtime.keeper import UNKNOWN_EXIT
from ostler.runtime.link import UNHURRIED_S, Link, SupervisorUnreachable, gone, reach
from ostler.runtime.spawn import NOT_EXECUTABLE
from ostler.runtime.supervisor import ATTEMPTS

ANSWER_S = 30.0
LEAVING_S = 15.0
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 5.0
_SELDOM = ("after", "anywhere", "lease_s", "memory_mib", "stop", "user", "warm")


class Replaced(Exception):
    """Another worker process has taken this folder's supervisor: this one stops."""


class _Said(msgspec.Struct):
    """Anything that the supervisor says."""

    kind: str = msgspec.field(name="is")
    held: list[Held] = []
    end: Ended | None = None
    peaks: dict[str, int] = {}
    samples: dict[str, tuple[int, int]] = {}
    attempt: str = ""
    error: str = ""
    attempts: str = ""
    """Where the folders of its attempts are."""
    prepares: bool = False
    """Whether it can be told what may be launched next."""
    likens: bool = False
    """Whether it takes a launch that says only what is not as in the last one, and several attempts to be forgotten."""
    key: str = ""
    """Of a process beside an attempt: which of those that were asked for."""


class _Live(msgspec.Struct):
    """An attempt whose end has not been told."""

    task_id: str
    grace_s: float = 0.0
    launch: Launch | None = None
    """How; None if an earlier worker process did it."""
    stop: dict[str, Any] | None = None


_decode = msgspec.json.Decoder(_Said).decode
_log = logging.getLogger(__name__)


class ProcessRuntime:
    """Runs tasks through the supervisor of `folder`.

    What should be is kept here, what is is asked from the supervisor after every connect, and the difference is
    sent: a lost line, a lost connection and a killed supervisor are one case.
    """

    def __init__(
        self,
        folder: Path,
        *,
        attempts: Path | None = None,
        idle_exit_s: float = 60.0,
        ends: "asyncio.Queue[Ended | Replaced | None] | None" = None,
    ) -> None:
        """`ends`: told there instead of by `ends()`, where others tell theirs."""
        self._folder = folder.absolute()
        self._attempts = os.fspath((attempts or self._folder / ATTEMPTS).absolute())
        self._idle_exit_s = idle_exit_s
        self._live: dict[str, _Live] = {}
        self._unforgotten: set[str] = set()
        self._prepares = False
        """Whether the supervisor does; one that an earlier version has left does not."""
        self._likens = False
        """The same of launches that say only what is not as in the last."""
        self._last = ""
        """The attempt whose launch it was told last."""
        self._forgetting: list[str] = []
        """Those that it is to be told of as forgotten, soon and together."""
        self._base: Mapping[str, str] = {}
        """That of the launch before, which the supervisor was told once."""
        self._contact_at: float | None = None
        """When the hub was last in contact, if anybody has told."""
        self._peaks: dict[str, int] = {}
        self._samples: dict[str, tuple[int, int]] = {}
        self._besides: dict[str, asyncio.Future[str]] = {}
        """Processes beside attempts that were asked for, and what keeps them from starting."""
        self._ends: asyncio.Queue[Ended | Replaced | None] = asyncio.Queue() if ends is None else ends
        self._link: Link | None = None
        """Set while orders can be sent: connected, and the difference has been sent."""
        self._greeting: tuple[Link, asyncio.Future[list[Held]]] | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._opened = False
        self._closed = False

    async def open(self) -> list[Held]:
        """Find or start the supervisor; everything it holds. An end that shows here is not told by `ends` again."""
        give_up_at = time.monotonic() + ANSWER_S
        while True:
            try:
                return await self._connect()
            except ConnectionError:
                # It was just leaving, or was killed while we spoke: the next one knows all that it knew.
                if time.monotonic() > give_up_at:
                    raise

    def prepare(self, launch: Launch) -> None:
        if self._prepares and self._link is not None and not self.holds(launch.attempt):
            self._send_base(launch.base)
            self._send({**_order(launch), "do": "prepare"})
            self._link.flush()

    async def launch(self, launch: Launch) -> None:
        name = launch.attempt
        path = self.path(name)
        if name in self._live or name in self._unforgotten:
            return
        if name in self._forgetting:
            self._send_forgotten()
        if launch.files:
            _write_files(path, launch.files)
        grace_s = 2 * launch.grace_s if launch.stop else launch.grace_s
        self._live[name] = _Live(launch.task_id, grace_s, _without_files(launch))
        self._send_launch(launch)

    async def stop(self, attempt: str, reason: str, grace_s: float) -> None:
        live = self._live.get(attempt)
        if live is not None:
            live.stop = {"do": "stop", "attempt": attempt, "reason": reason, "grace_s": grace_s}
            self._send(live.stop)

    async def call_back(self, attempt: str, reason: str) -> None:
        live = self._live.get(attempt)
        if live is not None and live.stop is None:
            live.stop = {"do": "call_back", "attempt": attempt, "reason": reason}
            self._send(live.stop)

    async def beside(self, attempt: str, argv: list[str], env: dict[str, str]) -> str:
        """Start one more process of an attempt that runs: in its folder and its group, with its environment and this,
        as its user. It ends with the attempt. What kept it from starting, or nothing."""
        if attempt not in self._live or self._link is None:
            return "the task does not run here" if attempt not in self._live else "the worker has lost its supervisor"
        key = secrets.token_hex(8)
        told = self._besides[key] = asyncio.get_running_loop().create_future()
        self._send({"do": "beside", "of": attempt, "argv": argv, "env": env, "key": key})
        try:
            return await asyncio.wait_for(told, ANSWER_S)
        except TimeoutError:
            return "the worker's supervisor does not answer"
        finally:
            del self._besides[key]

    async def renew(self, age_s: float) -> None:
        self._contact_at = max(self._contact_at or 0.0, also_asleep() - age_s)
        self._send_contact()

    def _send_contact(self) -> None:
        if self._contact_at is not None:
            # By the clock that both have, so that it is no younger for having lain in a buffer; the age is for a
            # supervisor that an older worker has left.
            age_s = also_asleep() - self._contact_at
            self._send({"do": "renew", "at": self._contact_at, "age_s": age_s})

    async def forget(self, attempt: str) -> None:
        if attempt in self._live:
            raise ValueError(f"attempt {attempt} has not ended, so it cannot be forgotten")
        if attempt in self._unforgotten:
            self._unforgotten.discard(attempt)
            if not self._likens:
                self._send({"do": "forget", "attempt": attempt}, unhurried=True)
                return
            if not self._forgetting:
                asyncio.get_running_loop().call_later(UNHURRIED_S, self._send_forgotten)
            self._forgetting.append(attempt)

    def _send_forgotten(self) -> None:
        forgetting, self._forgetting = self._forgetting, []
        if forgetting:
            self._send({"do": "forget", "attempts": forgetting})

    def peaks(self) -> dict[str, int]:
        return self._peaks

    def samples(self) -> dict[str, tuple[int, int]]:
        return self._samples

    async def ends(self) -> AsyncIterator[Ended]:
        while (end := await self._ends.get()) is not None:
            if isinstance(end, Exception):
                raise end
            yield end

    def folder(self, attempt: str) -> Path:
        return Path(self.path(attempt))

    def path(self, attempt: str) -> str:
        if not attempts.is_attempt_name(attempt):
            raise ValueError(f"not an attempt id: {attempt!r}")
        return f"{self._attempts}/{attempt}"

    @property
    def live(self) -> int:
        """How many have not ended."""
        return len(self._live)

    async def close(self, *, stop_tasks: bool) -> None:
        if stop_tasks and self._connecting is not None:
            # The supervisor was just lost: the next one finds its tasks, and can be told to leave.
            await asyncio.wait({self._connecting}, timeout=ANSWER_S)
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        self._send_forgotten()
        link, self._link = self._link, None
        if link is not None:
            if stop_tasks:
                link.send({"do": "shutdown", "reason": "shutdown"})
                longest_s = max((live.grace_s for live in self._live.values()), default=0.0)
                await gone(link, longest_s + LEAVING_S)
            link.close()
            await gone(link, LEAVING_S)
        self._ends.put_nowait(None)

    def holds(self, attempt: str) -> bool:
        return attempt in self._live or attempt in self._unforgotten

    def _send(self, order: dict[str, Any], *, unhurried: bool = False) -> None:
        # Without a link it is not lost: the next connect sends the difference.
        if self._link is not None:
            self._link.send(order, unhurried=unhurried)

    def _send_base(self, base: Mapping[str, str]) -> None:
        """Nearly all of an environment is that of every other task of the same user: it is sent when it changes."""
        if base is not self._base and base != self._base:
            self._base = base
            self._send({"do": "base", "env": base}, unhurried=True)  # a launch comes next, and both leave together

    def _send_launch(self, launch: Launch) -> None:
        self._send_base(launch.base)
        order = _short_order(launch) if self._likens and launch.like and launch.like == self._last else _order(launch)
        self._last = launch.attempt
        # One that waits for another's end is there in time.
        self._send(order, unhurried=bool(launch.after))

    async def _connect(self) -> list[Held]:
        link = await reach(self._folder, Path(self._attempts), self._idle_exit_s, lambda: Link(self._heard, self._lost))
        answer: asyncio.Future[list[Held]] = asyncio.get_running_loop().create_future()
        self._greeting = (link, answer)
        link.send({"do": "list"})
        try:
            return await asyncio.wait_for(answer, ANSWER_S)
        except TimeoutError as error:
            raise SupervisorUnreachable(f"the supervisor of {self._folder} does not answer") from error
        finally:
            self._greeting = None
            if link is not self._link:
                link.close()

    async def _reconnect(self) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._closed:
            try:
                await self._connect()
                return
            except (SupervisorUnreachable, OSError) as error:
                _log.warning("no supervisor, trying again in %.2f s: %s", pause_s, error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _heard(self, line: bytes) -> None:
        said = _decode(line)
        if said.kind == "ended" and said.end is not None:
            self._tell(said.end)
        elif said.kind == "held" and self._greeting is not None:
            # Here and now, not when `_connect` wakes up: the next line may be the end of one of these.
            self._link, answer = self._greeting
            if said.attempts not in ("", self._attempts) and not answer.done():
                told = (
                    f"the supervisor of {self._folder} has its tasks in {said.attempts}; wait for a minute after they"
                )
                answer.set_exception(SupervisorUnreachable(f"{told} have ended, and start this worker again"))
                return
            self._base, self._prepares = {}, said.prepares
            self._last, self._likens = "", said.likens
            self._forgetting.clear()
            self._send_contact()
            self._take_back(said.held)
            if not answer.done():
                answer.set_result(said.held)
        elif said.kind == "peaks":
            self._peaks |= {attempt: mib for attempt, mib in said.peaks.items() if attempt in self._live}
        elif said.kind == "samples":
            self._samples |= {attempt: one for attempt, one in said.samples.items() if attempt in self._live}
        elif said.kind == "replaced":
            self._closed = True
            replaced = Replaced(f"another worker process uses the supervisor of {self._folder}")
            self._ends.put_nowait(replaced)
            if self._greeting is not None and not self._greeting[1].done():
                self._greeting[1].set_exception(replaced)
        elif said.kind == "beside":
            self._tell_beside(said.key, said.error)
        elif said.kind == "refused":
            _log.error("the supervisor refused an order: %s", said.error)
            if not said.attempt:
                older = "the supervisor that keeps this task is older than its worker, and stays until its tasks end"
                for key in self._besides:
                    self._tell_beside(key, older)
            self._tell(Ended(attempt=said.attempt, task_id="", exit_code=NOT_EXECUTABLE, error=said.error))

    def _take_back(self, held: list[Held]) -> None:
        if self._opened:
            self._send_difference({one.attempt: one for one in held})
            return
        self._opened = True
        for one in held:
            if one.ended is None:
                self._live[one.attempt] = _Live(one.task_id)
            else:
                self._unforgotten.add(one.attempt)

    def _send_difference(self, held: dict[str, Held]) -> None:
        for name, one in held.items():
            if one.ended is not None and name not in self._live and name not in self._unforgotten:
                self._send({"do": "forget", "attempt": name})
        for name, live in list(self._live.items()):
            one_held = held.get(name)
            if one_held is not None and one_held.ended is not None:
                self._tell(one_held.ended)
                continue
            if one_held is None and live.launch is None:
                error = "the supervisor lost its records"
                self._tell(Ended(attempt=name, task_id="", exit_code=UNKNOWN_EXIT, error=error))
                continue
            if one_held is None and live.launch is not None:
                # Nothing of it is on the disk, so it was never started.
                self._send_launch(live.launch)
            if live.stop is not None:
                self._send(live.stop)

    def _tell(self, end: Ended) -> None:
        live = self._live.pop(end.attempt, None)
        self._peaks.pop(end.attempt, None)
        self._samples.pop(end.attempt, None)
        if live is not None:
            end.task_id = live.task_id
            end.finished_at = end.finished_at or time.time()
            self._unforgotten.add(end.attempt)
            self._ends.put_nowait(end)

    def _tell_beside(self, key: str, error: str) -> None:
        told = self._besides.get(key)
        if told is not None and not told.done():
            told.set_result(error)

    def _lost(self, link: Link) -> None:
        if self._greeting is not None and self._greeting[0] is link and not self._greeting[1].done():
            self._greeting[1].set_exception(ConnectionResetError("the supervisor hung up"))
        if link is self._link:
            self._link = None
            if not self._closed:
                self._connecting = asyncio.get_running_loop().create_task(self._reconnect())
                self._connecting.add_done_callback(self._connected)

    def _connected(self, task: asyncio.Task[None]) -> None:
        self._connecting = None
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("the way back to the supervisor failed", exc_info=error)


def _order(launch: Launch) -> dict[str, Any]:
    order: dict[str, Any] = {
        "do": "launch",
        "attempt": launch.attempt,
        "task_id": launch.task_id,
        "argv": launch.argv,
        "env": launch.env,
        "deadline_s": launch.deadline_s,
        "grace_s": launch.grace_s,
    }
    # Of all the rest a plain task has nothing.
    for what in _SELDOM:
        if value := getattr(launch, what):
            order[what] = value
    return order


def _without_files(launch: Launch) -> Launch:
    """What may have to be told again. Its files are where they belong, and may be large."""
    return msgspec.structs.replace(launch, files={}) if launch.files else launch


def _short_order(launch: Launch) -> dict[str, Any]:
    return {
        "do": "launch",
        "like": launch.like,
        "attempt": launch.attempt,
        "task_id": launch.task_id,
        "env": launch.own,
        "after": launch.after,
    }


def _write_files(folder: str, files: dict[str, bytes]) -> None:
    wrong = [name for name in files if not attempts.is_file_name(name)]
    if wrong:
        raise ValueError(f"not a plain file name: {wrong[0]!r}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    for name, content in files.items():
        with open(os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(content)
