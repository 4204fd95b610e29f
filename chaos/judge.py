"""What was promised, and whether it held: the hub's word compared with what the tasks wrote themselves."""

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
from benchmarks.crowd import quantile

from chaos.diary import Diary, log_of, value_of
from chaos.fleet import ChaosFleet
from chaos.load import Load, Sent
from ostler.client.artifacts import extract
from ostler.client.job import Job
from ostler.core.check import check
from ostler.core.persist import restore
from ostler.domain.errors import OstlerError
from ostler.domain.states import TERMINAL
from ostler.ledger.sqlite import SqliteLedger

ASKING = 4
SHOWN = 3
LONGEST = 300
MAX_RSS_MIB = 512.0
MAX_LAG_S = 1.0
Document = dict[str, Any]


class Promise(msgspec.Struct):
    """One that was looked at: of how many things, and for which of them it did not hold."""

    text: str
    looked_at: int
    broken: list[str] = []

    @property
    def held(self) -> bool:
        return not self.broken


class Allowed(msgspec.Struct):
    """What this fault may do to a job that is not promised more."""

    failures: bool = False
    """It may fail: a full disk is the task's own misfortune."""
    runs_again: bool = False
    """It may be run again, never twice at once if it is `alone`, and not at all if it is `patient`."""
    stopped_alone: bool = False
    """One that must not run beside another may have been stopped by its own machine, and run again."""
    unprinted: bool = False
    """What it printed may be lost before anybody has it."""
    dies: bool = False
    """Processes are killed by the fault itself: whatever ran may be run again."""


class Judge:
    def __init__(self, fleet: ChaosFleet, load: Load, diary: Diary, allowed: Allowed | None = None) -> None:
        self._fleet = fleet
        self._load = load
        self._diary = diary
        self._allowed = allowed or Allowed()
        self.found: list[Promise] = []
        self._tasks: dict[str, Document] = {}
        self._kinds = {task: sent.kind for sent in load.acknowledged.values() for task in sent.tasks()}

    def look(self, *workers: str) -> list[Promise]:
        """While the hub and these workers run and nothing is left to do; then they are stopped, as by a person."""
        sent, lag = list(self._load.acknowledged.values()), self._fleet.lag()
        with ThreadPoolExecutor(ASKING) as pool:
            sent = self._nothing_is_lost(sent)
            self._promise("every job has one outcome, told once", sent, pool.map(self._outcome, sent))
            for document in pool.map(self._fleet.hub.job, [task for one in sent for task in one.tasks()]):
                self._tasks[document["id"]] = document
            ended_well = [one for one in sent if self._ended_well(one)]
            self._promise(
                "its result, log and artifact are those of the attempt that counts",
                ended_well,
                pool.map(self._left, ended_well),
            )
        self._ran_as_recorded()
        self._no_two_at_once()
        self._began_once()
        self._hub_is_well(lag)
        self._all_is_given_back(workers)
        return self.found

    def promise(self, text: str, looked_at: int, broken: Iterable[str]) -> None:
        self.found.append(Promise(text, looked_at, [one[:LONGEST] for one in broken]))

    def _promise(self, text: str, about: list[Sent], said: Iterable[str]) -> None:
        self.promise(text, len(about), [one for one in said if one])

    def _nothing_is_lost(self, sent: list[Sent]) -> list[Sent]:
        """Those that are there."""
        there = Counter(job["id"] for job in self._fleet.hub.all_jobs())
        names = Counter(job["name"] for job in self._fleet.hub.all_jobs())
        lost = [f"{one.id} ({one.name}) was acknowledged and is gone" for one in sent if not there[one.id]]
        known = {one.name for one in sent} | self._load.unanswered
        twice = [f"{name} is there {count} times" for name, count in names.items() if count > 1]
        unasked = [f"{name} was never sent" for name in names.keys() - known]
        self.promise("no acknowledged job is lost, and none is there twice", len(sent), lost + twice + unasked)
        return [one for one in sent if there[one.id]]

    def _outcome(self, one: Sent) -> str:
        job = self._fleet.hub.job(one.id)
        told = self._fleet.ends_told(one.id)
        if job["state"] not in TERMINAL:
            return f"{one.id} ({one.name}) has not ended: {job['state']}, {job['reason']}"
        if job["state"] != "succeeded" and not self._allowed.failures:
            return f"{one.id} ({one.name}) ended as {job['state']}: {job['reason']}"
        names = {one.id, *one.tasks()}
        wrong = {name: ends for name in names if len(ends := told.get(name, [])) != 1}
        return f"{one.id} ({one.name}): ends told {wrong}" if wrong else ""

    def _ended_well(self, one: Sent) -> bool:
        return all(self._tasks[task]["state"] == "succeeded" for task in one.tasks())

    def _left(self, one: Sent) -> str:
        for task in one.tasks():
            attempt = self._tasks[task]["attempt"]
            try:
                log = b"".join(self._fleet.hub.logs(task)).decode()
                if log != log_of(task, attempt) and not self._allowed.unprinted:
                    return f"{task}: its log is {log[-200:]!r}"
                if one.kind == "leaves" and (left := self._artifact(task)) != f"left by {attempt}\n":
                    return f"{task}: its artifact holds {left!r}, and the attempt is {attempt}"
            except (OstlerError, OSError) as error:
                return f"{task}: {error}"
        if one.kind == "call":
            value = Job(self._fleet.hub, one.id).result(timeout=60)
            if value != value_of(one.id, self._tasks[one.id]["attempt"]):
                return f"{one.id}: its value is {value!r}"
        return ""

    def _artifact(self, task: str) -> str:
        with tempfile.TemporaryDirectory(prefix="chaos-artifact-") as folder:
            extract(self._fleet.hub, self._fleet.hub.artifact(self._tasks[task]["artifact_id"]), Path(folder) / "it")
            return (Path(folder) / "it" / "left").read_text()

    def _ran_as_recorded(self) -> None:
        """Of every task that its ledger says has succeeded, the attempt that counts began once and ended once."""
        counts, wrong = self._diary.counts(), []
        for task, document in self._tasks.items():
            if document["state"] != "succeeded":
                continue
            ran = [counts[word, task, document["attempt"]] for word in ("begin", "end")]
            if ran != [1, 1]:
                wrong.append(f"{task}: its attempt {document['attempt']} began {ran[0]} and ended {ran[1]} times")
        for (word, task, attempt), times in counts.items():
            if task not in self._tasks:
                continue  # of a submit that was given up
            known = {one["attempt"] for one in self._tasks[task]["attempts"]}
            if attempt not in known or times > 1:
                wrong.append(f"{task}: {word} of {attempt} was written {times} times; the ledger knows {sorted(known)}")
        self.promise("the ledger says what ran, and what ran is in the ledger", len(self._tasks), wrong)

    def _no_two_at_once(self) -> None:
        """An overlap is told by the second of two, which could not have the lock of the first."""
        runs_on = self._allowed.runs_again
        wrong, looked_at = [], 0
        for line in self._diary.lines():
            kind = self._kinds.get(line.task, "")
            if runs_on and kind != "alone":
                continue
            looked_at += line.word == "begin"
            if line.word == "overlap":
                wrong.append(f"{line.task} ({kind}): {line.attempt} ran beside another")
        what = " (of those that are promised it: on_lost_contact = 'stop')" if runs_on else ""
        self.promise(f"no task ran twice at once{what}", looked_at, wrong)

    def _began_once(self) -> None:
        """Where nothing of it was lost, nothing is run again."""
        if self._allowed.dies:
            return
        may_again = {"patient"} if self._allowed.runs_again else {*self._kinds.values()}
        if self._allowed.stopped_alone:
            may_again.discard("alone")
        begun = Counter(line.task for line in self._diary.lines() if line.word == "begin")
        looked_at = [task for task, kind in self._kinds.items() if kind in may_again]
        wrong = [f"{task} ({self._kinds[task]}) began {begun[task]} times" for task in looked_at if begun[task] > 1]
        what = " (of those whose grace is longer than the fault)" if self._allowed.runs_again else ""
        self.promise(f"no task was begun twice{what}", len(looked_at), wrong)

    def _hub_is_well(self, before: dict[float, int]) -> None:
        """All that was asked of it since `before` was asked without a fault."""
        rss = self._fleet.peak_rss_mib
        small = [] if rss <= MAX_RSS_MIB else [f"{rss:.0f} MiB at its peak"]
        self.promise(f"the hub stays within {MAX_RSS_MIB:.0f} MiB", 1, small)
        late_s = quantile(before, self._fleet.lag(), 0.99)
        late = [] if late_s <= MAX_LAG_S else [f"its loop was late by up to {late_s:g} s, p99"]
        self.promise("the hub's loop is not held up once the fault is over", 1, late)

    def _all_is_given_back(self, workers: tuple[str, ...]) -> None:
        found = [self._fleet.worker(name) for name in workers]
        taken = [f"{worker['id']} holds {worker['tasks']}" for worker in found if worker["tasks"]]
        self.promise("all room is free again", len(workers), taken)
        codes = self._fleet.stop(*workers)
        self.promise("workers leave when they are told to", len(codes), [f"exit codes {codes}"] if any(codes) else [])
        self._fleet.terminate("hub")
        self.promise("no process is left over", 1, _until_empty(self._fleet.left_over))
        self.promise("the ledger can be read, and every invariant holds in it", 1, _unsound(self._fleet.state))


def _until_empty(look: Callable[[], list[str]], patience_s: float = 15.0) -> list[str]:
    """An idle supervisor, or one that has just been told, takes a moment."""
    deadline = time.monotonic() + patience_s
    while (found := look()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


def _unsound(state: Path) -> list[str]:
    try:
        ledger = SqliteLedger(state / "ostler.db")
        try:
            check(restore(ledger.load(), lambda: "unused", 0.0, time.time()), 0.0, after_pass=False)
        finally:
            ledger.close()
    except (OstlerError, AssertionError) as error:
        return [f"{type(error).__name__}: {error}"]
    return []
