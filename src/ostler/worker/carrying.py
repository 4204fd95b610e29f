"""Checkpoints on their way: to the hub while a task runs and when it has not succeeded, and from there to its next
attempt, wherever that is."""

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import msgspec

from ostler.archive.unpack import BadArchive, Limits, unpack
from ostler.pull import Unpackable, pack
from ostler.runtime.identity import Identity, as_owner, give
from ostler.worker.api import CHECKPOINT_BLOBS, Declined, HubApi, Missing, Unreachable
from ostler.worker.checkpoints import Checkpoints, Look, look_at, remove
from ostler.worker.events import CheckpointBrought
from ostler.worker.orders import Order
from ostler.worker.stoppable import in_thread, write_to
from ostler.worker.uploads import Traffic

LOOK_S = 30.0
STILL_S = 2.0
"""A checkpoint is taken when it has not changed for this long: nobody is just writing it."""
MAX_BYTES = 10 * 1024**3
AT_ONCE = 2
TRIES = 8
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 15.0

_log = logging.getLogger("ostler.worker")


class NotFetched(OSError):
    """The hub could not be asked for it, several times: another worker may have more luck."""


class _Carried(msgspec.Struct, kw_only=True):
    """The checkpoint of one attempt."""

    task_id: str
    attempt: str
    known: str = ""
    """The one that the hub told it to begin from."""
    mark: str = ""
    """Of the content that the hub has, or cannot have."""
    brought: str = ""
    looking: asyncio.Task[None] | None = None


class Carrier:
    def __init__(
        self,
        api: HubApi,
        checkpoints: Checkpoints,
        worker_id: str,
        *,
        runs: Callable[[str], bool],
        tell: Callable[[CheckpointBrought], None],
        traffic: Traffic,
        owner: Callable[[Order], Identity | None] = lambda _: None,
    ) -> None:
        self._owner = owner
        self._api = api
        self._checkpoints = checkpoints
        self._worker_id = worker_id
        self._runs = runs
        self._tell = tell
        self._traffic = traffic
        self._limits = Limits()
        self._carried: dict[str, _Carried] = {}
        self._fetched: dict[str, str] = {}
        """Marks of checkpoints that were brought here for attempts which are about to begin."""
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def close(self) -> None:
        tasks = [one.looking for one in self._carried.values() if one.looking is not None]
        tasks += [self._watching] if self._watching is not None else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # To the next attempt

    def is_elsewhere(self, order: Order) -> bool:
        """Whether what it begins from must be fetched. What this worker brought to the hub is here, or was newer."""
        is_ours = order.checkpoint_by == self._worker_id and not self._checkpoints.is_empty(order.task_id)
        return bool(order.checkpoint) and not is_ours

    async def fetch(self, order: Order) -> None:
        """In place of whatever is here. Without it, if the hub does not have it: a checkpoint only saves time."""
        draft = self._checkpoints.draft(order.attempt)
        archive = draft.with_name(f"{draft.name}.tar")
        try:
            await self._download(order.checkpoint, archive)
            await in_thread(lambda stop: unpack(archive, draft, self._limits, stop))
            if (user := self._owner(order)) is not None:
                await asyncio.to_thread(give, str(draft), user)
            before = self._checkpoints.replace(order.task_id, draft)
        except (Declined, BadArchive) as error:
            _log.warning(
                "%s starts without its checkpoint %s: %s",
                order.task_id,
                order.checkpoint,
                error,
                extra={"task": order.task_id},
            )
            return
        finally:
            archive.unlink(missing_ok=True)
        if before:
            await asyncio.to_thread(remove, before)
        seen = await asyncio.to_thread(look_at, self._checkpoints.path(order.task_id))
        self._fetched[order.attempt] = seen.mark

    async def _download(self, sha256: str, archive: Path) -> None:
        pause_s, why = FIRST_PAUSE_S, ""
        for _ in range(TRIES):
            try:
                await self._api.get_blob(sha256, archive, self._limits.total_bytes, CHECKPOINT_BLOBS)
                return
            except Missing:
                raise Missing("the hub does not have it any more") from None
            except Unreachable as error:
                why = str(error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        raise NotFetched(f"checkpoint {sha256} could not be fetched, {TRIES} times: {why}")

    # To the hub

    def begun(self, attempt: str, task_id: str, known: str = "") -> None:
        """It runs: what it writes from now on is brought to the hub."""
        mark = self._fetched.pop(attempt, "")
        self._carried[attempt] = _Carried(task_id=task_id, attempt=attempt, known=known, mark=mark)

    def has_nothing(self, attempt: str) -> bool:
        one = self._carried.get(attempt)
        return one is None or self._checkpoints.is_empty(one.task_id)

    def forget(self, attempt: str) -> None:
        one = self._carried.pop(attempt, None)
        self._fetched.pop(attempt, None)
        if one is not None and one.looking is not None:
            one.looking.cancel()

    async def last(self, attempt: str) -> str:
        """Of an attempt whose processes are gone: the hub has what it left, if that can be brought at all."""
        one = self._carried.get(attempt)
        if one is None:
            return ""
        if one.looking is not None:
            one.looking.cancel()
            await asyncio.wait({one.looking})
        if not self._checkpoints.is_empty(one.task_id):
            await self._bring(one)
        return one.brought

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            for one in self._carried.values():
                if one.looking is None and self._runs(one.attempt) and not self._checkpoints.is_empty(one.task_id):
                    one.looking = asyncio.get_running_loop().create_task(self._look(one))
                    one.looking.add_done_callback(_complain)

    async def _look(self, one: _Carried) -> None:
        before = one.brought
        try:
            await self._bring(one, STILL_S)
        except Unreachable as error:
            _log.info("the checkpoint of %s waits for the hub: %s", one.task_id, error, extra={"task": one.task_id})
        finally:
            one.looking = None
        if one.brought != before:
            self._tell(CheckpointBrought(attempt=one.attempt, checkpoint=one.brought))

    async def _bring(self, one: _Carried, still_s: float = 0.0) -> None:
        """If there is anything new, and nobody changes it meanwhile."""
        folder = self._checkpoints.path(one.task_id)
        try:
            seen = await asyncio.to_thread(look_at, folder)
            if seen.mark == one.mark:
                return
            await asyncio.sleep(still_s)
            self._check_size(seen)
            async with self._turn:
                sha256 = await self._pack_and_put(one, folder, seen)
        except (Declined, Unpackable) as reason:
            _log.warning(
                "the checkpoint of %s stays on this machine: %s", one.task_id, reason, extra={"task": one.task_id}
            )
            one.mark = seen.mark
            return
        except OSError as error:
            _log.info(
                "the checkpoint of %s could not be read just now: %s", one.task_id, error, extra={"task": one.task_id}
            )
            return
        if sha256:
            one.mark = seen.mark
            one.brought = sha256 if sha256 != one.known else one.brought

    async def _pack_and_put(self, one: _Carried, folder: str, seen: Look) -> str:
        """Its sha256, once the hub has it; "" if it has changed."""
        target = self._checkpoints.draft(one.attempt)
        try:
            with self._traffic.packing():
                sha256 = await in_thread(lambda stop: _pack_if_still(folder, seen, target, stop))
            if sha256 and sha256 not in (one.known, one.brought):
                await self._api.put_blob(sha256, target, CHECKPOINT_BLOBS, self._traffic.moved)
            return sha256
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(target)

    def _check_size(self, seen: Look) -> None:
        if seen.size > MAX_BYTES:
            raise Unpackable(f"it has {seen.size} bytes, and {MAX_BYTES} is the limit")
        if seen.entries > self._limits.entries or seen.depth > self._limits.depth:
            raise Unpackable(f"it has more than {self._limits.entries} files, or folders that are too deep")


def _packed(folder: str, file: BinaryIO) -> str:
    with as_owner(folder):
        return pack(folder, file)


def _pack_if_still(folder: str, seen: Look, target: Path, stop: threading.Event) -> str:
    if look_at(folder) != seen:
        return ""
    try:
        sha256 = write_to(target, lambda file: _packed(folder, file), stop)
    except (Unpackable, OSError):
        if look_at(folder) != seen:
            return ""  # it changed, and that was all
        raise
    return sha256 if look_at(folder) == seen else ""


def _complain(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("a bug: a checkpoint was not looked at", exc_info=error)
