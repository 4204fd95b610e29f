"""What an ended task leaves for the hub beside its exit code: its log, its value, its outputs or its checkpoint."""

import asyncio
import base64
import hashlib
import time
from collections.abc import Callable
from pathlib import Path

from ostler.pull import Unpackable
from ostler.runtime.attempts import OUT, open_plain
from ostler.runtime.identity import as_owner
from ostler.worker.api import Declined, HubApi, Unreachable
from ostler.worker.carrying import Carrier
from ostler.worker.disk import is_full
from ostler.worker.events import OUTPUTS, VALUE, CollectOutcome, OutcomeCollected
from ostler.worker.lacking import KernelKills, lacked
from ostler.worker.logs import Logs
from ostler.worker.outputs import is_empty, pack_outputs
from ostler.worker.redaction import Redactor
from ostler.worker.stoppable import in_thread
from ostler.worker.told import is_short, read_told
from ostler.worker.uploads import Traffic, Upload, bring

RESULT = "result.pkl"
ERROR_FILE = "error.txt"
"""What a prolog or an epilog had to say."""
SAID_BYTES = 1000
PACKED = "outputs.tar"
PACKED_AT_ONCE = 2
"""There are few threads, and those that read for the uploads must not wait for long."""
MAX_INLINE_BYTES = 48 * 1024
"""64 KiB in base64: what a job_result may carry."""


class Outcomes:
    def __init__(
        self, api: HubApi, logs: Logs, folder: Callable[[str], Path], carrier: Carrier, traffic: Traffic
    ) -> None:
        self._api = api
        self._logs = logs
        self._folder = folder
        self._carrier = carrier
        self._traffic = traffic
        self.redactor: Callable[[str], Redactor | None] = lambda _: None
        """Who covers the secrets in what an attempt has said."""
        self._packing = asyncio.Semaphore(PACKED_AT_ONCE)
        self._kills = KernelKills()
        self._uploads: dict[str, Upload] = {}
        """Outputs that are packed, by attempt, until the hub has acknowledged its result."""

    def at_once(self, wanted: CollectOutcome) -> OutcomeCollected | None:
        """The outcome, where no request is needed for it: nearly every short task."""
        attempt = wanted.attempt
        if wanted.outputs or not self._has_nothing(wanted):
            return None
        if not wanted.succeeded and (self._is_explained(attempt) or not self._carrier.has_nothing(attempt)):
            return None
        found = OutcomeCollected(attempt=attempt)
        self._see_what_it_lacked(found, wanted, b"")
        size = self._size(attempt) if wanted.call and not wanted.left_nothing else 0
        if size > MAX_INLINE_BYTES:
            return None
        self._take_inline(found, size)
        return found

    def _has_nothing(self, wanted: CollectOutcome) -> bool:
        """No log that anybody reads or would, and no outputs."""
        if wanted.left_nothing:
            return not self._logs.is_asked_for(wanted.attempt)
        return self._logs.is_empty(wanted.attempt) and is_empty(f"{self._folder(wanted.attempt)}/{OUT}")

    def _is_explained(self, attempt: str) -> bool:
        """Somebody else than the task itself has said why it ended so."""
        return (self._folder(attempt) / ERROR_FILE).exists()

    async def collect(self, wanted: CollectOutcome) -> OutcomeCollected:
        """The log first, so that whoever hears of the end finds it there; then all the rest."""
        await asyncio.sleep(wanted.after_s)
        folder = self._folder(wanted.attempt)
        before = self._logs.reached(wanted.attempt)
        logged = await self._logs.finish(wanted.task_id, wanted.attempt)
        # To begin a thread costs as much as all the rest of a task that printed a line.
        redactor = self.redactor(wanted.attempt) or Redactor(())
        cover = redactor.covered
        told = read_told(folder, cover) if is_short(folder) else await asyncio.to_thread(read_told, folder, cover)
        told.last_line = redactor.text(told.last_line)  # again: without its colours it may show what they hid
        said = _said(folder, redactor)
        found = OutcomeCollected(
            attempt=wanted.attempt,
            metrics=told.metrics,
            last_line=told.last_line,
            said=said,
            unreachable=not logged,
            progressed=self._logs.reached(wanted.attempt) > before,
        )
        self._see_what_it_lacked(found, wanted, told.log)
        if wanted.call:
            await self._bring_value(found)
        if not wanted.succeeded:
            await self._bring_checkpoint(found)
        elif not found.error and not found.lacking:
            await self._bring_outputs(found, wanted.outputs)
        return found

    def look_for_kills(self) -> bool:
        """Now and then, so that what the kernel did long ago is not taken for the end of a task."""
        return self._kills.look(time.monotonic())

    def _see_what_it_lacked(self, found: OutcomeCollected, wanted: CollectOutcome, log: bytes) -> None:
        if not wanted.succeeded:
            found.disk_full = is_full(self._folder(wanted.attempt).parent)
            found.lacked, found.lacked_line = lacked(log, wanted.killed and self.look_for_kills())

    def forget(self, attempt: str) -> None:
        """Its result is with the hub."""
        upload = self._uploads.pop(attempt, None)
        if upload is not None:
            upload.path.unlink(missing_ok=True)

    # A function's value

    async def _bring_value(self, found: OutcomeCollected) -> None:
        size = self._size(found.attempt)
        if size <= MAX_INLINE_BYTES:
            self._take_inline(found, size)
            return
        path = self._folder(found.attempt) / RESULT
        try:
            sha256 = await asyncio.to_thread(_sha256, path)
            await self._api.put_blob(sha256, path, moved=self._traffic.moved)
            found.result_id = sha256
        except Unreachable:
            found.unreachable, found.lacking = True, VALUE
        except (Declined, OSError) as refusal:
            found.error = f"the function's value of {size} bytes was not taken: {refusal}"

    def _take_inline(self, found: OutcomeCollected, size: int) -> None:
        if not size:
            return
        folder = self._folder(found.attempt)
        try:
            with as_owner(folder), open_plain(folder / RESULT) as file:
                data = file.read(size)
        except OSError as error:
            found.error = f"the function's value cannot be read: {error}"
        else:
            found.result = base64.b64encode(data).decode("ascii")

    def _size(self, attempt: str) -> int:
        try:
            return (self._folder(attempt) / RESULT).stat().st_size
        except OSError:
            return 0

    # Outputs, and what takes their place where there are none

    async def _bring_outputs(self, found: OutcomeCollected, outputs: tuple[str, ...]) -> None:
        try:
            upload = self._uploads.get(found.attempt) or await self._pack(found.attempt, outputs)
        except (Unpackable, OSError) as error:
            found.error = f"its outputs were not packed: {error}"
            return
        if upload is None:
            return
        before = upload.have
        try:
            await bring(self._api, upload, self._traffic)
            found.artifact_id = upload.sha256
        except Unreachable:
            found.unreachable, found.lacking = True, OUTPUTS
            found.progressed = found.progressed or upload.have > before
        except (Declined, OSError) as refusal:
            found.error = f"its outputs of {upload.size} bytes were not taken: {refusal}"

    async def _pack(self, attempt: str, outputs: tuple[str, ...]) -> Upload | None:
        folder = self._folder(attempt)
        if not outputs and is_empty(f"{folder}/{OUT}"):
            return None
        target = folder / PACKED
        async with self._packing:
            with self._traffic.packing():
                sha256 = await in_thread(lambda stop: pack_outputs(folder, outputs, target, stop))
        if not sha256:
            return None
        upload = Upload(path=target, sha256=sha256, size=target.stat().st_size)
        self._uploads[attempt] = upload
        return upload

    async def _bring_checkpoint(self, found: OutcomeCollected) -> None:
        try:
            found.checkpoint_id = await self._carrier.last(found.attempt)
        except Unreachable:
            found.unreachable = True


def _said(folder: Path, redactor: Redactor) -> str:
    try:
        with as_owner(folder), open_plain(folder / ERROR_FILE) as file:
            return redactor.covered(file.read(SAID_BYTES + redactor.longest))[:SAID_BYTES].decode(errors="replace")
    except OSError:
        return ""


def _sha256(path: Path) -> str:
    with as_owner(path.parent), open_plain(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
