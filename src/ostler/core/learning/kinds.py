"""What jobs of one kind have taken: run time, peak memory, peak VRAM. A kind is what a job is, whoever submits it and
however often: its name without numbers, the program and script that it runs, its template, what it trains."""

import re
from contextlib import suppress
from hashlib import blake2b

import msgspec

from ostler.core.learning.digest import Curve, Digest
from ostler.domain.job import CALL, JobSpec
from ostler.domain.records import KeptRecord

SCOPE = "kind"
"""Under which the ledger keeps this, and loads it: ledger/base.py says the same word."""
MAX_KINDS = 4096
HIGH_PART = 0.95
MARGIN = 1.1
STEP_MIB = 256
"""What is asked for where the job leaves it to what its kind has taken."""
MAX_SHARED = 65_536
EVERYBODY = "all"
FEW_RUNS = 3
"""Fewer say little about what comes."""
_NUMBERS = re.compile(r"[-_.:/#= ]*(?:\d+|[0-9a-f]{8,})(?=$|[-_.:/#= ])", re.IGNORECASE)
_SCRIPT = re.compile(r"[^-].*\.(?:py|sh|bash|pl|rb|js|lua|R|jl|m)$|^[^-].*/", re.IGNORECASE)
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


class Kind(msgspec.Struct, omit_defaults=True):
    """What is known of one kind; of one user's jobs and of all, only their run times."""

    run_s: Digest = msgspec.field(default_factory=Digest)
    """Of runs that succeeded; `cut` are those that were ended for other reasons than their own."""
    failed_s: Digest = msgspec.field(default_factory=Digest)
    of_limit: Digest = msgspec.field(default_factory=Digest)
    """The same as part of the run-time limit, where the user gave one."""
    memory_mib: Digest = msgspec.field(default_factory=Digest)
    vram_mib: Digest = msgspec.field(default_factory=Digest)
    vram_had_mib: int = 0
    """The most that a run had and succeeded with; a margin above what it took need not be more."""
    vram_lacked_mib: int = 0
    """The most that a run had and died of."""
    memory_had_mib: int = 0
    runs: int = 0
    turn: int = 0
    """When it was used last, counted in runs of all kinds."""

    def curve(self) -> Curve | None:
        """Of the run time. What failed would have taken longer; but a kind that has only ever failed takes as long as
        that took."""
        failed, cut = self.failed_s.weights(), self.run_s.weights(cut=True)
        if not self.run_s.seen:
            return Curve.of(failed, cut) if failed else None
        for bucket, weight in failed.items():
            cut[bucket] = cut.get(bucket, 0.0) + weight
        return Curve.of(self.run_s.weights(), cut)

    def needs_vram_mib(self) -> int:
        """What a run of this kind should have, by what others took; 0: nothing is known."""
        return _needed(self.vram_mib, self.vram_had_mib if self.vram_had_mib > self.vram_lacked_mib else 0)

    def needs_memory_mib(self) -> int:
        return _needed(self.memory_mib, self.memory_had_mib)

    def limit_curve(self) -> Curve | None:
        return Curve.of(self.of_limit.weights(), self.of_limit.weights(cut=True)) if self.of_limit.seen else None


_kind = msgspec.msgpack.Decoder(Kind)


def _needed(taken: Digest, had_mib: int) -> int:
    """In steps, so that a need does not change with every run."""
    high = taken.high(HIGH_PART)
    steps = -(-int(high * MARGIN) // STEP_MIB) * STEP_MIB
    return min(steps, had_mib) if had_mib else steps


class Run(msgspec.Struct, frozen=True):
    """One attempt that is over."""

    ran_s: float
    outcome: str
    """succeeded, failed, cut (it would have gone on)"""
    endless: bool = False
    """A service: how long it ran says nothing."""
    limit_s: float = 0.0
    """The user's own; 0: none."""
    memory_mib: int = 0
    vram_mib: int = 0
    """What it took at most."""
    memory_had_mib: int = 0
    vram_had_mib: int = 0
    """What there was for it: its machine's memory, its devices'."""
    lacked: str = ""
    """`vram` or `memory`: what it ran out of."""


class Kinds:
    """Bounded: the kinds used longest ago are forgotten."""

    def __init__(self) -> None:
        self._kinds: dict[str, Kind] = {}
        """Least recently used first."""
        self._curves: dict[str, dict[bool, Curve | None]] = {}
        self._shared: dict[int, int] = {}
        self._turn = 0
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
        curves = self._curves.setdefault(key, {})
        if limited not in curves:
            curves[limited] = known.limit_curve() if limited else known.curve()
        return curves[limited]

    def learn(self, kind: int, user: str, run: Run) -> None:
        """Of a run's kind, of its user's jobs and of all jobs."""
        if not self.learns:
            return
        self._turn += 1
        of_kind = _key(kind) if kind else ""
        for key in (of_kind, _user_key(user), EVERYBODY):
            if key:
                known = self._used(key)
                _add(known, run)
                if key is of_kind:
                    _add_peaks(known, run)
                self._changed.add(key)
                self._curves.pop(key, None)

    def _used(self, key: str) -> Kind:
        known = self._kinds.pop(key, None) or Kind()
        known.turn = self._turn
        self._kinds[key] = known
        if len(self._kinds) > MAX_KINDS:
            oldest = next(iter(self._kinds))
            del self._kinds[oldest]
            self._curves.pop(oldest, None)
            self._changed.add(oldest)
        return known

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
        self._turn = found[-1][0].turn if found else 0


def _key(kind: int) -> str:
    return f"{kind:016x}"


def _user_key(user: str) -> str:
    return f"user:{user}"


def _add(known: Kind, run: Run) -> None:
    known.runs += 1
    if run.endless:
        return
    if run.outcome == "failed":
        known.failed_s.add(run.ran_s)
        return
    cut = run.outcome == "cut"
    known.run_s.add(run.ran_s, cut=cut)
    if run.limit_s:
        known.of_limit.add(run.ran_s / run.limit_s, cut=cut)


def _add_peaks(known: Kind, run: Run) -> None:
    """One that did not get to its end might have taken more; one that died of it would have."""
    unfinished = run.outcome != "succeeded"
    if run.lacked == "vram":
        known.vram_lacked_mib = max(known.vram_lacked_mib, run.vram_had_mib)
        known.vram_mib.add(max(run.vram_mib, run.vram_had_mib, 1) * MARGIN)
    elif run.vram_mib:
        known.vram_mib.add(run.vram_mib, cut=unfinished)
    if run.lacked == "memory":
        known.memory_mib.add(max(run.memory_mib, 1) * MARGIN)
    elif run.memory_mib:
        known.memory_mib.add(run.memory_mib, cut=unfinished)
    if not unfinished:
        known.vram_had_mib = max(known.vram_had_mib, run.vram_had_mib)
        known.memory_had_mib = max(known.memory_had_mib, run.memory_had_mib)
