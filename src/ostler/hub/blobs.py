"""Whose bytes are whose: users find the blobs that they brought, workers those of tasks that they hold.

Bytes are stored once, whoever brings them. Whether they are there already is told only to who has brought them too: one
who knows no more than a name learns nothing from it.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from ostler.core.fleet import Fleet
from ostler.domain.errors import BadInput, Hidden
from ostler.domain.job import CALL, JobSpec
from ostler.hub.access import Caller, speaks_for_one
from ostler.hub.loop import Loop
from ostler.hub.sessions import Sessions
from ostler.store.base import Shelf
from ostler.store.blobs import BlobStore


class Brought:
    """Who has brought what: an empty file for each, beside the blobs."""

    def __init__(self, folder: Path, blobs: Shelf) -> None:
        self._folder = folder
        self._blobs = blobs

    def by(self, user: str, sha256: str) -> bool:
        return self._blobs.has(sha256) and self._mark(user, sha256).exists()

    def note(self, user: str, sha256: str) -> None:
        mark = self._mark(user, sha256)
        mark.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        mark.touch(mode=0o600)

    def _mark(self, user: str, sha256: str) -> Path:
        return self._folder / hashlib.sha256(user.encode()).hexdigest()[:32] / sha256

    def must_be_known(self, caller: Caller, specs: Iterable[JobSpec]) -> None:
        """A job takes along what its user has brought: with another user's bytes it would read them. An operator's job
        may take any blob that there is."""
        for spec in specs:
            for sha256 in sorted(named_in(spec.snapshot(), spec.metadata)):
                is_operator = caller.role == "operator"
                if not (self._blobs.has(sha256) if is_operator else self.by(caller.user, sha256)):
                    named = (name for name in ("snapshot_sha", "snapshot_id") if getattr(spec, name) == sha256)
                    missing = f"there is no blob {sha256}" + ("" if is_operator else " of yours")
                    detail = f"{missing}; bring it first: PUT /v1/snapshots/{{sha256}}"
                    raise BadInput(detail, [(next(named, "metadata"), "unknown blob")])


_spec_of = msgspec.json.Decoder(JobSpec).decode


def named_in(snapshot: str, metadata: dict[str, Any]) -> set[str]:
    """The blobs that a job takes along."""
    call = metadata.get(CALL)
    payload = call.get("blob") if isinstance(call, dict) else None
    return {name for name in (snapshot, payload) if isinstance(name, str) and name}


class Reach:
    """Which blobs a caller may fetch."""

    def __init__(self, loop: Loop, sessions: Sessions, blobs: BlobStore, brought: Brought) -> None:
        self._loop = loop
        self._sessions = sessions
        self._blobs = blobs
        self.brought = brought

    async def must_reach(self, caller: Caller, sha256: str) -> None:
        if caller.role == "user":
            reaches = self.brought.by(caller.user, sha256)
        elif speaks_for_one(caller):
            reaches = await self._belongs_to_a_task_of(caller.user, sha256)
        else:
            reaches = True
        if not reaches:
            raise Hidden(f"there is no blob {sha256}")

    async def must_reach_checkpoint(self, caller: Caller, sha256: str) -> None:
        def names_it(fleet: Fleet, _: float) -> bool:
            worker = fleet.workers.get(caller.user)
            held = worker.attempts.values() if worker is not None else ()
            return any(one.task is not None and one.task.checkpoint == sha256 for one in held)

        if speaks_for_one(caller) and not await self._loop.look(names_it):
            raise Hidden(f"there is no checkpoint {sha256}")

    async def _belongs_to_a_task_of(self, worker_id: str, sha256: str) -> bool:
        def of_worker(fleet: Fleet, _: float) -> tuple[set[str], set[str]]:
            worker = fleet.workers.get(worker_id)
            held = worker.attempts.values() if worker is not None else ()
            jobs = [one.task.job for one in held if one.task is not None]
            return {job.snapshot for job in jobs}, {job.id for job in jobs}

        snapshots, jobs = await self._loop.look(of_worker)
        if sha256 in snapshots or sha256 in self._sessions.hinted(worker_id):
            return True
        specs = await self._loop.read(lambda ledger: ledger.specs(sorted(jobs))) if jobs else {}
        return any(sha256 in named_in(spec.snapshot(), spec.metadata) for spec in map(_spec_of, specs.values()))
