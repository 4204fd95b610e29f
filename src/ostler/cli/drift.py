"""Finds hyper keys and values that a program does not take, before any training starts.

Each program is asked on the fleet, by small jobs: one prints its `--help`. Click and typer show the types of options
there. Argparse shows none, but it converts each value when it reaches it, and `--help` ends the program before it
trains: a second job has the manifest's values before `--help`, and fails at the first that does not convert.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ostler.cli.follow import told_end
from ostler.cli.handover import Program, Value, handed_over, program_of, values_of
from ostler.cli.interface import (
    ARGPARSE,
    Unchecked,
    fault_of,
    interface_of,
    option_for,
    options_in,
    refusal_in,
)
from ostler.cli.render.words import clean, command_line
from ostler.domain import states
from ostler.domain.errors import NotAllowed, NotAuthenticated, OstlerError

if TYPE_CHECKING:
    from ostler.client.http import Hub
    from ostler.domain.job import JobSpec

T = TypeVar("T")
CHECK = "check: "
"""The names of the jobs that ask begin with this."""
ASKED_WITHIN_S = 20.0
"""For all programs together: an apply does not wait for a full fleet, or for a program that hangs."""
LOOK_S = 0.25
"""How long the check waits for the end of one job before it looks at the others."""
MOST_HELP_BYTES = 1024 * 1024
MOST_VALUES = 500
MOST_CHARACTERS = 64 * 1024
"""Of the values that one job has on its command line."""
MOST_REFUSED = 5
"""Wrong values of one program, each of which costs a run of it."""
NAMED_JOBS = 3
WIDE = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
"""Help is fitted to a terminal: a narrow one would cut the options' names."""
SHELLS = {"sh", "bash", "dash", "zsh", "fish", "ksh", "cmd", "cmd.exe", "powershell", "pwsh"}


class Drift(NamedTuple):
    line: int
    jobs: list[str]
    key: str
    program: str
    nearest: str = ""
    """The option that is most like a key that the program does not take."""
    value: str = ""
    """What the program does not take for a key that it takes."""
    why: str = ""

    def sentence(self, file: str) -> str:
        named = ", ".join(f"'{name}'" for name in self.jobs[:NAMED_JOBS])
        more = f" and {len(self.jobs) - NAMED_JOBS} more" if len(self.jobs) > NAMED_JOBS else ""
        who = f"{'job' if len(self.jobs) == 1 else 'jobs'} {named}{more}"
        where = f"{file}:{self.line}: {who}: hyper key '{self.key}': `{self.program}`"
        if self.why:
            return f"{where} does not take {self.value}: {self.why}"
        hint = f"; did you mean --{self.nearest}?" if self.nearest else "; see its --help"
        return f"{where} takes no --{self.key}{hint}"


class Findings(NamedTuple):
    drift: list[Drift]
    unchecked: dict[str, str]
    """By program, why it could not be asked."""

    def document(self) -> dict[str, Any]:
        unchecked = [{"program": program, "why": why} for program, why in self.unchecked.items()]
        return {"drift": [one._asdict() for one in self.drift], "unchecked": unchecked}


def check(hub: "Hub", jobs: "Iterable[JobSpec]", lines: Mapping[str, int]) -> Findings:
    """What the programs of these jobs do not take. All of them are asked at the same time."""
    deadline = time.monotonic() + ASKED_WITHIN_S
    findings = Findings([], {})
    asked = [Inquiry(hub, program, specs, lines, deadline) for program, specs in _by_program(jobs).items()]
    if asked and not _has_machines(hub):
        findings.unchecked.update({one.called: "no machine is connected to run it" for one in asked})
        return findings
    try:
        inquiries = [one for one in asked if _goes_on(one.ask, one, findings)]
        while inquiries:
            # One request waits for one job only: with the others it would hide the end of a job behind one that hangs.
            waits_s = [LOOK_S, *[0.0] * (len(inquiries) - 1)]
            looks = [partial(one.advance, wait_s) for one, wait_s in zip(inquiries, waits_s, strict=True)]
            inquiries = [one for one, look in zip(inquiries, looks, strict=True) if _goes_on(look, one, findings)]
    except BaseException:
        for one in asked:
            one.cancel()
        raise
    for one in asked:
        findings.drift.extend(one.drift)
    return findings


def _goes_on(step: Callable[[], bool], one: "Inquiry", findings: Findings) -> bool:
    """Whether this program is asked further. One that cannot be asked is only noted."""
    from ostler.client.errors import HubUnreachable

    try:
        return step()
    except (HubUnreachable, NotAllowed, NotAuthenticated):
        raise
    except (Unchecked, OstlerError) as error:
        one.cancel()
        findings.unchecked[one.called] = str(error)
        return False


def _has_machines(hub: "Hub") -> bool:
    workers = hub.status()["workers"]
    return any(workers.get(state) for state in ("ready", "busy"))


class Inquiry:
    """The questions to one program: first for its help, then about the values, as often as one is refused."""

    def __init__(
        self, hub: "Hub", program: Program, specs: "list[JobSpec]", lines: Mapping[str, int], deadline: float
    ) -> None:
        self.called = command_line(program)
        self.drift: list[Drift] = []
        self._hub, self._program, self._specs, self._lines = hub, program, specs, lines
        self._deadline = deadline
        self._job = ""
        self._has_help = False
        self._untried: list[Value] = []
        self._suspects: list[Value] = []
        """One of these was refused among others: each is tried alone."""

    def ask(self) -> bool:
        """Submits the job that asks the next question."""
        if PurePath(self._program[0]).name in SHELLS and not any(part.endswith(".py") for part in self._program):
            raise Unchecked("a shell's line does not show its options")
        spec, within_s = self._specs[0], self._deadline - time.monotonic()
        if within_s <= 0:
            raise Unchecked(f"{self._question()} was not run: the {ASKED_WITHIN_S:g} s of the check were over")
        arguments = [argument for value in self._batch() for argument in value.arguments()]
        answer = self._hub.submit(
            {
                "name": f"{CHECK}{self.called}"[:128],
                "command": [*self._program, *arguments, "--help"],
                "env": {**spec.env, **WIDE},
                "labels": spec.labels,
                "allowed_hosts": spec.allowed_hosts,
                "denied_hosts": spec.denied_hosts,
                "scheduling_timeout_seconds": within_s,
                "max_runtime_hours": within_s / 3600,
            }
        )
        self._job = str(answer["id"])
        return True

    def advance(self, wait_s: float) -> bool:
        """Looks whether the job has ended within this time, and then asks the next question. False: none is left."""
        left_s = self._deadline - time.monotonic()
        job = self._hub.job(self._job, wait=max(0.0, min(wait_s, left_s)))
        if job["state"] in states.TERMINAL:
            return self._learn(job, self._output()) and self.ask()
        if time.monotonic() < self._deadline:
            return True
        had = "begun" if job["state"] == states.PENDING else "ended"
        raise Unchecked(f"{self._question()} had not {had} after {ASKED_WITHIN_S:g} s")

    def cancel(self) -> None:
        """Ends the job of the question that has no answer yet."""
        if self._job:
            with suppress(OstlerError):
                self._hub.cancel(self._job)
        self._job = ""

    def _question(self) -> str:
        return "its --help with the values of the manifest" if self._has_help else "its --help"

    def _learn(self, job: dict[str, Any], output: str) -> bool:
        """True: there is something left to ask."""
        self._job = ""
        if self._has_help:
            return self._learn_of_values(job, output)
        if job["state"] != states.SUCCEEDED:
            raise Unchecked(f"{self._question()} {told_end(job)}")
        self._has_help = True
        return self._learn_of_help(output)

    def _batch(self) -> list[Value]:
        """The values of the next question."""
        if self._suspects:
            return self._suspects[:1]
        batch, length = list[Value](), 0
        for value in self._untried[:MOST_VALUES]:
            length += sum(len(argument) + 1 for argument in value.arguments())
            if batch and length > MOST_CHARACTERS:
                break
            batch.append(value)
        return batch

    def _output(self) -> str:
        """What the job printed."""
        output = b""
        for chunk in self._hub.logs(self._job):
            output += chunk
            if len(output) > MOST_HELP_BYTES:
                break
        return output.decode("utf-8", "replace")

    def _learn_of_help(self, text: str) -> bool:
        kind, options = interface_of(text), options_in(text)
        self.drift += _drift(self._program, self._specs, kind, options, self._lines)
        faults = {}
        for value in values_of(self._specs):
            if option := option_for(kind, options, value.key):
                faults[value] = fault_of(kind, text, option, value.word)
        self._refuse({value: fault for value, fault in faults.items() if fault})
        if kind == ARGPARSE:
            # A program may open a path while it converts its options: argparse.FileType("w") empties the file.
            self._untried = [value for value, fault in faults.items() if not fault and not value.may_be_a_path()]
        return bool(self._untried)

    def _learn_of_values(self, job: dict[str, Any], output: str) -> bool:
        """One refused value is found at a time, and the others are tried without it."""
        batch, refusal = self._batch(), refusal_in(output)
        if job["state"] == states.SUCCEEDED:
            self._set_aside(batch)
            return bool(self._untried or self._suspects)
        keys = refusal.keys_among({value.key for value in batch}) if refusal is not None else set()
        named = [value for value in batch if value.key in keys]
        if refusal is None or not named:
            raise Unchecked(f"{self._question()} {told_end(job)}")
        likely = [value for value in named if repr(value.word) in refusal.why] or named
        if len(batch) == 1 or (len(likely) == 1 and refusal.is_about_the_value()):
            self._refuse({likely[0]: refusal.why})
            self._set_aside(likely)
        elif len(likely) <= MOST_REFUSED:
            # Values of several jobs are on one command line: options that exclude each other are no fault of a job.
            self._suspects = likely
        else:
            raise Unchecked(f"it refuses a value of --{likely[0].key}: {refusal.why}")
        return bool(self._untried or self._suspects) and len(self.drift) < MOST_REFUSED

    def _set_aside(self, values: list[Value]) -> None:
        self._untried = [value for value in self._untried if value not in values]
        self._suspects = [value for value in self._suspects if value not in values]

    def _refuse(self, faults: dict[Value, str]) -> None:
        def refused(spec: "JobSpec") -> list[Value]:
            return [value for value in values_of([spec]) if value in faults]

        for (line, value), jobs in _by_line(self._specs, self._lines, refused):
            shown = clean(" ".join(value.arguments()))
            self.drift.append(Drift(line, jobs, value.key, self.called, value=shown, why=clean(faults[value])))


def _by_program(specs: Iterable["JobSpec"]) -> "dict[Program, list[JobSpec]]":
    """Those jobs that hand hyper keys to their program as options."""
    found: dict[Program, list[JobSpec]] = {}
    for spec in specs:
        if handed_over(spec):
            found.setdefault(program_of(spec), []).append(spec)
    return found


def _drift(
    program: Program, specs: "list[JobSpec]", kind: str, options: set[str], lines: Mapping[str, int]
) -> list[Drift]:
    """The keys that are none of these options."""

    def unknown(spec: "JobSpec") -> list[str]:
        return [key for key in handed_over(spec) if not option_for(kind, options, key)]

    return [
        Drift(line, jobs, key, command_line(program), next(iter(get_close_matches(key, sorted(options), 1)), ""))
        for (line, key), jobs in _by_line(specs, lines, unknown)
    ]


def _by_line(
    specs: "list[JobSpec]", lines: Mapping[str, int], parts_of: "Callable[[JobSpec], list[T]]"
) -> list[tuple[tuple[int, T], list[str]]]:
    """The names of jobs by line and part: the jobs of one entry share their line, and are reported together."""
    found: dict[tuple[int, T], list[str]] = {}
    for spec in specs:
        for part in parts_of(spec):
            found.setdefault((lines.get(spec.id, 1), part), []).append(spec.name)
    return sorted(found.items(), key=lambda one: one[0][0])
