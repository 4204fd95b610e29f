"""Records as rows of plain values, and back: a column for each field, under the field's name.

A field that is no plain value becomes JSON text, so that a person with a database shell can read it.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Generic, TypeVar, get_type_hints

import msgspec

from ostler.domain.audit import AuditRecord
from ostler.domain.job import Terms
from ostler.domain.records import (
    ArtifactRecord,
    AttemptRecord,
    DepartedRecord,
    EndedTask,
    FeedRecord,
    JobProgress,
    JobRecord,
    JobTerms,
    KeptRecord,
    ManifestRecord,
    NeedRecord,
    OutputKey,
    ReceiptRecord,
    SentAhead,
    TaskRecord,
    TokenRecord,
    UsageRecord,
    WorkerRecord,
    sent_ahead,
)
from ostler.domain.resources import Request
from ostler.ledger.base import JobView

Row = Sequence[Any]
R = TypeVar("R", bound=msgspec.Struct)

_PLAIN = {str, int, float, bytes, str | None, int | None, float | None, bytes | None}
# Frozen, and shared by many jobs: after a restart they share the object as well.
_SHARED = {Request, Terms}
# INDEX is a word of SQL.
_OTHER_NAMES = {"index": "idx"}
# What most rows have in most of their lists.
_EMPTY: dict[str, Callable[[], Any]] = {"[]": list, "{}": dict}
_NOTHING: dict[type, str] = {list: "[]", dict: "{}"}

_encode = msgspec.json.Encoder().encode


def text(value: object) -> str:
    return _encode(value).decode()


def line_about(task: str) -> str:
    """What stands in the body of a feed's line about this task, and of no other: within a text, quotes are escaped."""
    return f'"task":{text(task)}' if task else ""


class Shape(Generic[R]):
    """How the records of one kind lie in their table."""

    def __init__(self, kind: type[R]) -> None:
        hints = get_type_hints(kind)
        self._kind = kind
        self._fields = kind.__struct_fields__
        self._encoded = [at for at, field in enumerate(self._fields) if hints[field] not in _PLAIN | {bool}]
        self._parsers = [(field, _parser(hints[field])) for field in self._fields if hints[field] not in _PLAIN]
        self.columns = tuple(_OTHER_NAMES.get(field, field) for field in self._fields)

    def row(self, record: R) -> Row:
        values = list(msgspec.structs.astuple(record))
        for at in self._encoded:
            value = values[at]
            values[at] = text(value) if value or type(value) not in _NOTHING else _NOTHING[type(value)]
        return values

    def record(self, row: Row) -> R:
        values = dict(zip(self._fields, row, strict=True))
        for field, parse in self._parsers:
            values[field] = parse(values[field])
        return self._kind(**values)


def _parser(hint: Any) -> Callable[[Any], Any]:
    if hint is bool:
        return bool
    decode: Callable[[str], Any] = msgspec.json.Decoder(hint).decode
    if hint in _SHARED:
        return lru_cache(maxsize=4096)(decode)
    return lambda text: _EMPTY[text]() if text in _EMPTY else decode(text)


JOB = Shape(JobRecord)
PROGRESS = Shape(JobProgress)
TASK = Shape(TaskRecord)
ENDED_TASK = Shape(EndedTask)
ATTEMPT = Shape(AttemptRecord)
WORKER = Shape(WorkerRecord)
FEED = Shape(FeedRecord)
TOKEN = Shape(TokenRecord)
RECEIPT = Shape(ReceiptRecord)
USAGE = Shape(UsageRecord)
TERMS = Shape(JobTerms)
ARTIFACT = Shape(ArtifactRecord)
MANIFEST = Shape(ManifestRecord)
KEPT = Shape(KeptRecord)
NEED = Shape(NeedRecord)
DEPARTED = Shape(DepartedRecord)
OUTPUT = Shape(OutputKey)
AUDIT = Shape(AuditRecord)


def view(row: Row) -> JobView:
    split = len(JOB.columns)
    return JobView(JOB.record(row[:split]), None if row[split] is None else TASK.record(row[split:]))


def ended_task(row: Row) -> EndedTask:
    """Thousands at a time: none of its columns needs to be parsed."""
    return EndedTask(*row)


def numbered_artifact(row: Row) -> tuple[int, ArtifactRecord]:
    return row[0], ARTIFACT.record(row[1:])


def first(row: Row) -> Any:
    return row[0]


def sent(row: Row) -> SentAhead:
    return sent_ahead(row[0])


def pair(row: Row) -> tuple[str, bytes]:
    return row[0], row[1]
