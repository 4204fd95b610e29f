"""Those who wait for something other than a load under way, in one row for each model."""

from bisect import bisect_right
from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ostler.gateway.core.state import Request

SLACK = 64


Row = dict[int, "Request"]


class Line:
    """All requests of a model fare alike but for whose they are, so that order is among models: by their first
    request."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self._by_user: dict[str, dict[str, Row]] = {}

    def __bool__(self) -> bool:
        return bool(self.rows)

    def add(self, request: "Request") -> None:
        """At the end of its row; one that comes back takes the place its arrival gives it."""
        users = self._by_user.setdefault(request.model, {})
        for row in (self.rows.setdefault(request.model, {}), users.setdefault(request.user, {})):
            comes_back = bool(row) and next(reversed(row.values())).seq > request.seq
            row[request.id] = request
            if comes_back:
                ordered = sorted(row.values(), key=attrgetter("seq"))
                row.clear()
                row.update((each.id, each) for each in ordered)

    def remove(self, request: "Request") -> None:
        row, users = self.rows[request.model], self._by_user[request.model]
        del row[request.id], users[request.user][request.id]
        if not users[request.user]:
            del users[request.user]
        if not row:
            del self.rows[request.model], self._by_user[request.model]

    def firsts(self, model: str) -> "list[Request]":
        """Of each user who waits for the model."""
        return [next(iter(row.values())) for row in self._by_user.get(model, {}).values()]

    def row(self, model: str) -> "list[Request]":
        return list(self.rows.get(model, {}).values())

    def first(self, model: str) -> "Request | None":
        row = self.rows.get(model)
        return next(iter(row.values())) if row else None

    @staticmethod
    def older(row: Row, seq: int) -> int:
        youngest = next(reversed(row.values())).seq
        return len(row) - (youngest == seq) if youngest <= seq else sum(other.seq < seq for other in row.values())

    def count(self, model: str) -> int:
        return len(self.rows.get(model, ()))

    def everyone(self) -> "Iterator[Request]":
        return (request for row in self.rows.values() for request in row.values())


class Overtakings:
    """How many younger requests were served before one that waits, without touching any that waits: a grant leaves one
    mark, which counts against all that waited when they were older than the mark."""

    def __init__(self) -> None:
        self._marks: dict[int, int] = {}

    def granted(self, seq: int, waiting: "dict[int, Request]") -> None:
        if not waiting:
            self._marks.clear()
            return
        youngest = next(reversed(waiting.values())).seq
        mark = min(seq - 1, youngest)
        self._marks[mark] = self._marks.get(mark, 0) + 1
        if len(self._marks) > 2 * len(waiting) + SLACK:
            self._merge([request.seq for request in waiting.values()])

    def _merge(self, seqs: list[int]) -> None:
        """A mark says the same when it lies on the youngest of those it counts against."""
        marks, self._marks = self._marks, {}
        for mark, count in marks.items():
            if at := bisect_right(seqs, mark):
                self._marks[seqs[at - 1]] = self._marks.get(seqs[at - 1], 0) + count

    def of(self, seq: int) -> int:
        return sum(count for mark, count in self._marks.items() if mark >= seq)
