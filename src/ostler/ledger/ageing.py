"""What is old, in words that every SQL ledger understands but for how an argument is written."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from math import inf
from typing import Any, ClassVar, NamedTuple, TypeVar

from ostler.domain.records import DepartedRecord
from ostler.domain.states import LIVE, TERMINAL
from ostler.ledger import rows
from ostler.ledger.base import Old, Output

T = TypeVar("T")


def _in(states: Collection[str]) -> str:
    return f"IN ({', '.join(repr(state) for state in states)})"


_ENDED = f"state {_in(TERMINAL)}"
# Not EXISTS, for which PostgreSQL might read all of them at once.
_DEPENDED_ON = f"""
    (SELECT 1 FROM needs JOIN jobs live ON live.id = needs.job_id
     WHERE needs.on_id = jobs.id AND live.state {_in(LIVE)} LIMIT 1) IS NOT NULL
"""
_STAYS = f"""
    origin <> '' OR seq = (SELECT max(seq) FROM jobs)
    OR (SELECT 1 FROM artifacts WHERE artifacts.job_id = jobs.id LIMIT 1) IS NOT NULL OR {_DEPENDED_ON}
"""


class Statements(NamedTuple):
    ended_jobs: str
    departed: str
    outputs: str
    ends_of: str
    old_feed: str
    old_receipts: str


def statements(
    argument: str, one_of: str, jobs: str, artifacts: str, ended: str = "jobs", is_ended: str = _ENDED
) -> Statements:
    """With the columns of a job and of an artifact, and with how an argument is written: by its number. `ended`: how
    the table of jobs is named where only those are looked at that have ended; `is_ended`, that they have, word for word
    as the index jobs_ended says it: only then can it be used."""

    def said(text: str, *columns: str) -> str:
        arguments = {f"a{number}": argument.format(number) for number in range(1, 5)}
        return text.format(*columns, one_of=one_of, **arguments)

    return Statements(
        ended_jobs=said(
            f"""SELECT {{0}}, {_STAYS} FROM {{1}}
            WHERE {is_ended} AND finished_at < {{a1}} AND (finished_at, seq) > ({{a2}}, {{a3}})
            ORDER BY finished_at, seq LIMIT {{a4}}""",
            jobs,
            ended,
        ),
        departed=said(f"SELECT {', '.join(rows.DEPARTED.columns)} FROM departed WHERE id {{one_of}}"),
        outputs=said(
            f"""SELECT n, {{0}}, coalesce(
                (SELECT state {_in(LIVE)} OR finished_at >= {{a1}} OR {_DEPENDED_ON} FROM jobs
                 WHERE jobs.id = artifacts.job_id), false)
            FROM artifacts WHERE n > {{a2}} ORDER BY n LIMIT {{a3}}""",
            artifacts,
        ),
        ends_of=said(
            f"""SELECT attempt, CASE WHEN jobs.state {_in(LIVE)} OR {_DEPENDED_ON} THEN NULL
                ELSE coalesce(jobs.finished_at, 0) END
            FROM attempts JOIN jobs ON jobs.id = attempts.job_id WHERE attempt {{one_of}}"""
        ),
        # Of one page only: were there no old ones, everything would be read in search of them.
        old_feed=said(
            """SELECT seq, (SELECT 1 FROM jobs WHERE jobs.id = page.subject) IS NOT NULL
            FROM (SELECT seq, at, subject FROM feed WHERE seq > {a2} AND seq < (SELECT max(seq) FROM feed)
                  ORDER BY seq LIMIT {a3}) page
            WHERE at < {a1} ORDER BY seq"""
        ),
        old_receipts=said("SELECT key FROM receipts WHERE at < {a1} ORDER BY at LIMIT {a2}"),
    )


class Ageing(ABC):
    OLD: ClassVar[Statements]

    @abstractmethod
    def _all(self, build: Callable[[rows.Row], T], sql: str, *values: str | float | Collection[str]) -> list[T]:
        """What the statement finds."""

    def ended_jobs(self, *, before: float, after: tuple[float, int] = (-inf, 0), limit: int = 100) -> list[Old]:
        return self._all(_old, self.OLD.ended_jobs, float(before), float(after[0]), after[1], max(limit, 0))

    def departed(self, ids: Collection[str]) -> dict[str, DepartedRecord]:
        return {one.id: one for one in self._all(rows.DEPARTED.record, self.OLD.departed, ids)}

    def outputs(self, *, before: float, after: int = 0, limit: int = 100) -> list[Output]:
        return self._all(_output, self.OLD.outputs, float(before), after, max(limit, 0))

    def ends_of(self, attempts: Collection[str]) -> dict[str, float | None]:
        return dict(self._all(_pair, self.OLD.ends_of, attempts))

    def old_feed(self, *, before: float, after: int = 0, limit: int = 1000) -> list[tuple[int, bool]]:
        found = self._all(_pair, self.OLD.old_feed, float(before), after, max(limit, 0))
        return [(seq, bool(there)) for seq, there in found]

    def old_receipts(self, *, before: float, limit: int = 100) -> list[str]:
        return self._all(rows.first, self.OLD.old_receipts, float(before), max(limit, 0))


def _old(row: rows.Row) -> Old:
    return Old(rows.JOB.record(row[:-1]), bool(row[-1]))


def _output(row: rows.Row) -> Output:
    return Output(row[0], rows.ARTIFACT.record(row[1:-1]), bool(row[-1]))


def _pair(row: rows.Row) -> tuple[Any, Any]:
    return row[0], row[1]
