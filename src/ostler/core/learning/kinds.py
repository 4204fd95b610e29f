"""What jobs of one kind have taken: run time, peak memory, peak VRAM. A kind is what a job is, whoever submits it and
however often: its name without numbers, the program and script that it runs, its template, what it trains."""

import re
from contextlib import suppress
from hashlib import blake2b
from typing import Final

import msgspec

from ostler.core.learning.counting import add, add_to, bucket_of
from ostler.core.learning.curve import Curve
from ostler.core.learning.kind import MARGIN, Kind
from ostler.core.learning.run import Run
from ostler.domain.job import CALL, JobSpec
from ostler.domain.records import KeptRecord

SCOPE: Final = "kind"
"""Under which the ledger keeps this, and loads it: ledger/base.py says the same word."""
MAX_KINDS = 4096
MAX_SHARED: Final = 65_536
EVERYBODY: Final = "all"
FEW_RUNS: Final = 3
"""Fewer say little about what comes."""
RUNS_FOR_ONE_MORE: Final = 16
"""A curve of so many runs may lag behind by one, one of twice as many by two: nobody sees that, and to make one for
each run that ends is a part of every decision."""
_NUMBERS: Final = re.compile(r"[-_.:/#= ]*(?:\d+|[0-9a-f]{8,})(?=$|[-_.:/#= ])", re.IGNORECASE)
_SCRIPT: Final = re.compile(r"[^-].*\.(?:py|sh|bash|pl|rb|js|lua|R|jl|m)$|^[^-].*/", re.IGNORECASE)
_encode_identity = msgspec.json.Encoder().encode
_encode = msgspec.msgpack.Encoder().encode


def kind_of(spec: JobSpec) -> int:
    """63 bits that equal jobs share; never 0."""
    called = spec.metadata.get(CALL)
    what = (
        spec.type,
        _NUMBERS.sub("", spec.name),
        spec.template,
        [spec.training.model, spec.training.mode] if spec.training else [],
        called.get("name", "") if isinstance(called, dict) else "",
        _program(spec.command),
    )
    digest = blake2b(_encode_identity(what), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1 or 1


def _program(command: list[str]) -> list[str]:
    """The program, and the first argument that names a script or a module: not what it is run with."""
    program, arguments = command[:1], command[1:]
    for at, word in enumerate(arguments):
        if word == "-m":
            return [*program, *arguments[at : at + 2]]
        if word == "-c":
            return [*program, "-c", *arguments[at + 1 : at + 2]]
        if _SCRIPT.match(word):
            return [*program, word]
    return program


_kind = msgspec.msgpack.Decoder(Kind)


class Kinds:
    """Bounded: the kinds used longest ago are forgotten."""

    def __init__(self) -> None:
        self._kinds: dict[str, Kind] = {}
        """Least recently used first."""
        self._curves: dict[str, dict[bool, Curve | None]] = {}
        self._good_for: dict[str, float] = {}
        """How many more runs may be counted before those are made anew."""
        self._shared: dict[int, int] = {}
        self._turn = 0
        self._kind = 0
        self._user = ""
        self._latest: list[tuple[str, Kind]] = []
        """What the last run was counted into, which was of this kind and this user's: used last, so there is nothing to
        be found anew for the next of its like."""
        self._changed: set[str] = set()
        self.learns = True
        """False: what ends is foreseen only, and teaches nothing."""

    def shared(self, kind: int) -> int:
        """Equal kinds as one object: a queue may hold a million jobs."""
        if len(self._shared) > MAX_SHARED:
            self._shared.clear()
        return self._shared.setdefault(kind, kind)

    def of(self, kind: int) -> Kind | None:
        return self._kinds.get(_key(kind)) if kind else None

    def of_all(self) -> Kind | None:
        return self._kinds.get(EVERYBODY)

    def curve(self, kind: int) -> Curve | None:
        """Of the run time, or None where no run of this kind was seen."""
        return self._curve(_key(kind), limited=False) if kind else None

    def usual_curve(self, user: str, *, limited: bool) -> Curve | None:
        """Of the run time of this user's jobs, else of everybody's; where the user gave a limit, as part of that. None
        where few are known."""
        for key in (_user_key(user), EVERYBODY):
            known = self._kinds.get(key)
            seen = 0.0 if known is None else (known.of_limit if limited else known.run_s).runs()
            if seen >= FEW_RUNS:
                return self._curve(key, limited)
        return None

    def _curve(self, key: str, limited: bool) -> Curve | None:
        known = self._kinds.get(key)
        if known is None:
            return None
        if key not in self._curves:
            self._curves[key] = {}
            self._good_for[key] = known.run_s.runs() / RUNS_FOR_ONE_MORE
        curves = self._curves[key]
        if limited not in curves:
            curves[limited] = known.limit_curve() if limited else known.curve()
        return curves[limited]

    def learn(self, kind: int, user: str, run: Run) -> None:
        """Of a run's kind, of its user's jobs and of all jobs."""
        if not self.learns:
            return
        self._turn += 1
        took = bucket_of(run.ran_s)
        latest = self._latest
        if not latest or kind != self._kind or user != self._user:
            latest.clear()
            if kind:
                self._use(_key(kind))
            self._use(_user_key(user))
            self._use(EVERYBODY)
            self._kind, self._user = kind, user
        for key, known in latest:
            known.turn = self._turn
            _add(known, run, took)
            self._changed.add(key)
            if key in self._curves:
                self._good_for[key] -= 1
                if self._good_for[key] < 0:
                    self._forget_curves(key)
        if kind:
            _add_peaks(latest[0][1], run)

    def _use(self, key: str) -> None:
        known = self._kinds.pop(key, None) or Kind()
        self._kinds[key] = known
        self._latest.append((key, known))
        if len(self._kinds) > MAX_KINDS:
            oldest = next(iter(self._kinds))
            del self._kinds[oldest]
            self._forget_curves(oldest)
            self._changed.add(oldest)

    def _forget_curves(self, key: str) -> None:
        self._curves.pop(key, None)
        self._good_for.pop(key, None)

    def take_changes(self) -> list[KeptRecord]:
        """What is to be kept since the last call: each at most once."""
        if not self._changed:
            return []
        changed, self._changed = self._changed, set()
        return [KeptRecord(scope=SCOPE, key=key, value=self._value(key)) for key in sorted(changed)]

    def _value(self, key: str) -> bytes | None:
        known = self._kinds.get(key)
        return _encode(known) if known is not None else None

    def restore(self, kept: dict[str, bytes]) -> None:
        """What another version wrote, and this one cannot read, is learnt anew: no reason for a hub not to start."""
        found: list[tuple[Kind, str]] = []
        for key, value in kept.items():
            with suppress(msgspec.DecodeError):
                found.append((_kind.decode(value), key))
        found.sort(key=lambda one: (one[0].turn, one[1]))
        self._kinds = {key: known for known, key in found}
        self._latest.clear()
        self._turn = found[-1][0].turn if found else 0


def _key(kind: int) -> str:
    return f"{kind:016x}"


def _user_key(user: str) -> str:
    return f"user:{user}"


def _add(known: Kind, run: Run, took: int) -> None:
    known.runs += 1
    if run.endless:
        return
    if run.outcome == "failed":
        add_to(known.failed_s, took)
        return
    cut = run.outcome == "cut"
    add_to(known.run_s, took, cut=cut)
    if run.limit_s:
        add(known.of_limit, run.ran_s / run.limit_s, cut=cut)


def _add_peaks(known: Kind, run: Run) -> None:
    """One that did not get to its end might have taken more; one that died of it would have."""
    unfinished = run.outcome != "succeeded"
    if run.lacked == "vram":
        known.vram_lacked_mib = max(known.vram_lacked_mib, run.vram_had_mib)
        add(known.vram_mib, max(run.vram_mib, run.vram_had_mib, 1) * MARGIN)
    elif run.vram_mib:
        add(known.vram_mib, run.vram_mib, cut=unfinished)
    if run.lacked == "memory":
        add(known.memory_mib, max(run.memory_mib, 1) * MARGIN)
    elif run.memory_mib:
        add(known.memory_mib, run.memory_mib, cut=unfinished)
    if not unfinished:
        known.vram_had_mib = max(known.vram_had_mib, run.vram_had_mib)
        known.memory_had_mib = max(known.memory_had_mib, run.memory_had_mib)
