"""Finds hyper keys and values that a program does not take, before any training starts.

Each program is asked on the fleet, by small jobs: one prints its `--help`. Click and typer show the types of options
there. Argparse shows none, but it converts each value when it reaches it, and `--help` ends the program before it
trains: a second job has the manifest's values before `--help`, and fails at the first that does not convert.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ostler.cli.follow import told_end
from ostler.cli.interface import ARGPARSE, Unchecked, fault_of, interface_of, options_in, refusal_in
from ostler.cli.render.words import clean, command_line
from ostler.domain import states
from ostler.domain.errors import OstlerError

if TYPE_CHECKING:
    from ostler.client.http import Hub
    from ostler.domain.job import JobSpec

T = TypeVar("T")
Program = tuple[str, ...]
ASKED_WITHIN_S = 20.0
"""For all programs together: an apply does not wait for a full fleet, or for a program that hangs."""
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


class Value(NamedTuple):
    """A value of a hyper key, as the command has it."""

    key: str
    word: str | None
    """None: the option stands alone."""

    def arguments(self) -> list[str]:
        return [f"--{self.key}", *([] if self.word is None else [self.word])]


def check(hub: "Hub", jobs: "Iterable[JobSpec]", lines: Mapping[str, int]) -> Findings:
    """What the programs of these jobs do not take. All of them are asked at the same time."""
    deadline = time.monotonic() + ASKED_WITHIN_S
    findings = Findings([], {})
    asked = [Inquiry(hub, program, specs, lines, deadline) for program, specs in _by_program(jobs).items()]
    if asked and not _has_machines(hub):
        findings.unchecked.update({one.called: "no machine is connected to run it" for one in asked})
        return findings
    inquiries = asked
    try:
        while inquiries:
            inquiries = [one for one in inquiries if _goes_on(one.ask, one, findings)]
            inquiries = [one for one in inquiries if _goes_on(one.learn, one, findings)]
    except BaseException:
        with suppress(OstlerError):
            for one in asked:
                one.cancel()
        raise
    for one in asked:
        findings.drift.extend(one.drift)
    return findings


def _goes_on(step: Callable[[], bool], one: "Inquiry", findings: Findings) -> bool:
    """Whether this program is asked further. One that cannot be asked is only noted."""
    try:
        return step()
    except Unchecked as error:
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
        if PurePath(self._program[0]).name in SHELLS and not any(part.endswith(".py") for part in self._program):
            raise Unchecked("a shell's line does not show its options")
        spec, within_s = self._specs[0], self._deadline - time.monotonic()
        if within_s <= 0:
            raise self._too_late()
        arguments = [argument for value in self._batch() for argument in value.arguments()]
        answer = self._hub.submit(
            {
                "name": f"check: {self.called}"[:128],
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

    def learn(self) -> bool:
        """Waits for the answer. True: there is something left to ask."""
        job, output = self._answer()
        if self._has_help:
            return self._learn_of_values(job, output)
        if job["state"] != states.SUCCEEDED:
            raise Unchecked(f"its --help {told_end(job)}")
        self._has_help = True
        return self._learn_of_help(output)

    def cancel(self) -> None:
        if self._job:
            self._hub.cancel(self._job)

    def _too_late(self) -> Unchecked:
        return Unchecked(f"its --help had not ended after {ASKED_WITHIN_S:g} s")

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

    def _answer(self) -> tuple[dict[str, Any], str]:
        """The job that has ended, and what it printed."""
        from ostler.client.errors import WaitTimeout
        from ostler.client.job import wait_for_end

        try:
            job = wait_for_end(self._hub, self._job, max(0.0, self._deadline - time.monotonic()))
        except WaitTimeout:
            self.cancel()
            raise self._too_late() from None
        output = b""
        for chunk in self._hub.logs(self._job):
            output += chunk
            if len(output) > MOST_HELP_BYTES:
                break
        return job, output.decode("utf-8", "replace")

    def _learn_of_help(self, text: str) -> bool:
        kind, options = interface_of(text), options_in(text)
        self.drift += _drift(self._program, self._specs, options, self._lines)
        values = [value for value in values_of(self._specs) if value.key in options]
        faults = {value: fault_of(kind, text, value.key, value.word) for value in values}
        self._refuse({value: fault for value, fault in faults.items() if fault})
        self._untried = [value for value in values if not faults[value]] if kind == ARGPARSE else []
        return bool(self._untried)

    def _learn_of_values(self, job: dict[str, Any], output: str) -> bool:
        """One refused value is found at a time, and the others are tried without it."""
        batch, refusal = self._batch(), refusal_in(output)
        if job["state"] == states.SUCCEEDED:
            self._set_aside(batch)
            return bool(self._untried or self._suspects)
        named = [value for value in batch if refusal is not None and value.key in refusal.names]
        if refusal is None or not named:
            raise Unchecked(f"with the values of the manifest, its --help {told_end(job)}")
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


def program_of(spec: "JobSpec") -> Program:
    """The command up to its first option: `python -m trainer`, `torchrun --nproc-per-node 2 train.py`, `trainer fit`.

    What a job's own values stand for is left out, so that one program is not asked once for each of them.
    """
    command = spec.command
    scripts = [place for place, part in enumerate(command) if part.endswith(".py")]
    modules = [place + 1 for place, part in enumerate(command[:-1]) if part == "-m"]
    end = 1 + next(iter([*scripts, *modules]), 0)
    values = _texts_of(spec)
    while end < len(command) and not command[end].startswith(("-", "$")) and command[end] not in values:
        end += 1
    return tuple(command[:end])


def _texts_of(spec: "JobSpec") -> set[str]:
    training = spec.training
    if training is None:
        return set()
    own = (spec.name, training.model, training.mode, training.split_recipe, training.seed, training.n_resamples)
    return {str(value) for value in (*own, *training.hyper.values())}


def handed_over(spec: "JobSpec") -> list[str]:
    """The hyper keys that are options of the command. One that is false stands nowhere, and goes with the others."""
    hyper = spec.training.hyper if spec.training else {}
    given = [key for key in hyper if f"--{key}" in spec.command]
    silent = [key for key, value in hyper.items() if value is False and key not in given]
    return [*given, *silent] if len(given) + len(silent) == len(hyper) else given


def values_of(specs: "Iterable[JobSpec]") -> list[Value]:
    """The different values that these jobs hand over, each once."""
    found: dict[Value, None] = {}
    for spec in specs:
        hyper = spec.training.hyper if spec.training else {}
        for key in handed_over(spec):
            if f"--{key}" in spec.command:
                after = spec.command.index(f"--{key}") + 1
                is_bare = hyper[key] is True or after == len(spec.command)
                found[Value(key, None if is_bare else spec.command[after])] = None
    return list(found)


def _drift(program: Program, specs: "list[JobSpec]", options: set[str], lines: Mapping[str, int]) -> list[Drift]:
    """The keys that are none of these options."""

    def unknown(spec: "JobSpec") -> list[str]:
        return [key for key in handed_over(spec) if key not in options]

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
