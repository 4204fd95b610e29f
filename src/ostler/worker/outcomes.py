"""What an ended task leaves for the hub beside its exit code: its log, and the value of a function."""

import asyncio
import base64
import hashlib
from collections.abc import Callable
from pathlib import Path

from ostler.worker.api import Declined, HubApi, Unreachable
from ostler.worker.events import CollectOutcome, OutcomeCollected
from ostler.worker.logs import Logs

RESULT = "result.pkl"
ERROR_FILE = "error.txt"
"""What a prolog or an epilog had to say."""
MAX_INLINE_BYTES = 48 * 1024
"""64 KiB in base64: what a job_result may carry."""


class Outcomes:
    def __init__(self, api: HubApi, logs: Logs, folder: Callable[[str], Path]) -> None:
        self._api = api
        self._logs = logs
        self._folder = folder

    def at_once(self, wanted: CollectOutcome) -> OutcomeCollected | None:
        """The outcome, where no request is needed for it: nearly every short task."""
        if not self._logs.is_empty(wanted.attempt):
            return None
        if not wanted.call:
            return OutcomeCollected(attempt=wanted.attempt)
        size = self._size(wanted.attempt)
        if size > MAX_INLINE_BYTES:
            return None
        found = OutcomeCollected(attempt=wanted.attempt)
        self._take_inline(found, size)
        return found

    async def collect(self, wanted: CollectOutcome) -> OutcomeCollected:
        """The log first, so that whoever hears of the end finds it there; then the value."""
        await asyncio.sleep(wanted.after_s)
        logged = await self._logs.finish(wanted.task_id, wanted.attempt)
        found = OutcomeCollected(attempt=wanted.attempt, unreachable=not logged, said=self._said(wanted.attempt))
        if not wanted.call or not (size := self._size(wanted.attempt)):
            return found
        if size <= MAX_INLINE_BYTES:
            self._take_inline(found, size)
            return found
        try:
            found.artifact_id = await self._upload(wanted.attempt)
        except Unreachable:
            found.unreachable = True
        except (Declined, OSError) as refusal:
            found.error = f"the function's value of {size} bytes was not taken: {refusal}"
        return found

    def _said(self, attempt: str) -> str:
        try:
            return (self._folder(attempt) / ERROR_FILE).read_text(errors="replace")[:1000]
        except OSError:
            return ""

    def _take_inline(self, found: OutcomeCollected, size: int) -> None:
        if not size:
            return
        try:
            data = (self._folder(found.attempt) / RESULT).read_bytes()
        except OSError as error:
            found.error = f"the function's value cannot be read: {error}"
        else:
            found.result = base64.b64encode(data).decode("ascii")

    async def _upload(self, attempt: str) -> str:
        path = self._folder(attempt) / RESULT
        sha256 = await asyncio.to_thread(_sha256, path)
        await self._api.put_blob(sha256, path)
        return sha256

    def _size(self, attempt: str) -> int:
        try:
            return (self._folder(attempt) / RESULT).stat().st_size
        except OSError:
            return 0


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
