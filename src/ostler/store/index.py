"""index.jsonl: one line for each task's artifact, for people and programs that look at the folder itself.

A line is written once, in one piece, and forced to the disk. The hub does not depend on it: the ledger knows all of it.
"""

import os
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from ostler.domain.records import ArtifactRecord
from ostler.store.uploads import sync


class Line(msgspec.Struct, kw_only=True):
    artifact_id: str
    job: str
    name: str
    task: str
    attempt: str
    worker: str
    model: str
    mode: str
    size: int
    time: str
    metrics: dict[str, float]
    path: str


class _Key(msgspec.Struct):
    artifact_id: str
    task: str


_encode = msgspec.json.Encoder().encode
_key = msgspec.json.Decoder(_Key)


def line_of(record: ArtifactRecord, path: str) -> Line:
    at = datetime.fromtimestamp(record.created_at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Line(
        artifact_id=record.id,
        job=record.job_id,
        name=record.name,
        task=record.task_id,
        attempt=record.attempt,
        worker=record.worker,
        model=record.model,
        mode=record.mode,
        size=record.size,
        time=at,
        metrics=record.metrics,
        path=path,
    )


class Index:
    """Used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._listed: set[tuple[str, str]] = set()
        self._cut_torn_line()
        for raw in self._lines():
            if (key := _key_of(raw)) is not None:
                self._listed.add(key)

    def has(self, record: ArtifactRecord) -> bool:
        return (record.id, record.task_id) in self._listed

    def add(self, line: Line) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with open(descriptor, "ab", buffering=0) as file:
            file.write(_encode(line) + b"\n")
            os.fsync(descriptor)
        self._listed.add((line.artifact_id, line.task))

    def drop(self, ids: Collection[str]) -> None:
        """All lines of these artifacts. What cannot be read stays as it is."""
        if not any(artifact in ids for artifact, _ in self._listed):
            return
        new = self._path.with_name(f".{self._path.name}")
        with new.open("wb") as file:
            for raw in self._lines():
                key = _key_of(raw)
                if key is None or key[0] not in ids:
                    file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self._path)
        sync(self._path.parent)
        self._listed = {key for key in self._listed if key[0] not in ids}

    def _lines(self) -> Iterator[bytes]:
        try:
            with self._path.open("rb") as file:
                yield from file
        except FileNotFoundError:
            return

    def _cut_torn_line(self) -> None:
        """Of a line that a crash has cut, the beginning may be there; it is written again when it is missed."""
        whole = sum(len(raw) for raw in self._lines() if raw.endswith(b"\n"))
        if self._path.exists() and self._path.stat().st_size != whole:
            os.truncate(self._path, whole)


def _key_of(raw: bytes) -> tuple[str, str] | None:
    try:
        found = _key.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return found.artifact_id, found.task
