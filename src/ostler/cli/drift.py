"""Hyper keys that a program does not take, found before any training starts: the program is asked for its help."""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from ostler.cli.follow import told_end
from ostler.cli.render.words import command_line
from ostler.domain import states
from ostler.domain.errors import OstlerError

if TYPE_CHECKING:
    from ostler.client.http import Hub
    from ostler.domain.job import JobSpec

Program = tuple[str, ...]
PLACED_WITHIN_S = 60
RUNS_AT_MOST_H = 0.05
ENDED_WITHIN_S = 300
MOST_HELP_BYTES = 1024 * 1024
NAMED_JOBS = 3
WIDE = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
"""Help is fitted to a terminal: a narrow one would cut the options' names."""
SHELLS = {"sh", "bash", "dash", "zsh", "fish", "ksh", "cmd", "cmd.exe", "powershell", "pwsh"}
_OPTION = re.compile(r"(?<![\w-])--(\[no-?\])?([A-Za-z0-9][\w.-]*)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_COMMANDS = re.compile(r"^\W*commands\b|(?<!\[)\{[\w,-]+\} \.\.\.", re.IGNORECASE | re.MULTILINE)


class Unchecked(Exception):
    """It cannot be told what this program takes."""


class Drift(NamedTuple):
    line: int
    jobs: list[str]
    key: str
    program: str
    nearest: str

    def sentence(self, file: str) -> str:
        named = ", ".join(f"'{name}'" for name in self.jobs[:NAMED_JOBS])
        more = f" and {len(self.jobs) - NAMED_JOBS} more" if len(self.jobs) > NAMED_JOBS else ""
        who = f"{'job' if len(self.jobs) == 1 else 'jobs'} {named}{more}"
        hint = f"; did you mean --{self.nearest}?" if self.nearest else "; see its --help"
        return f"{file}:{self.line}: {who}: hyper key '{self.key}': `{self.program}` takes no --{self.key}{hint}"


class Findings(NamedTuple):
    drift: list[Drift]
    unchecked: dict[str, str]
    """By program, why it could not be asked."""

    def document(self) -> dict[str, Any]:
        unchecked = [{"program": program, "why": why} for program, why in self.unchecked.items()]
        return {"drift": [one._asdict() for one in self.drift], "unchecked": unchecked}


def check(hub: "Hub", jobs: "Iterable[JobSpec]", lines: Mapping[str, int]) -> Findings:
    """Every program of these jobs is run once with --help, as a small job; all at the same time."""
    findings = Findings([], {})
    asked: dict[Program, tuple[str, list[JobSpec]]] = {}
    try:
        for program, specs in _by_program(jobs).items():
            try:
                asked[program] = (_ask(hub, program, specs[0]), specs)
            except Unchecked as error:
                findings.unchecked[command_line(program)] = str(error)
        for program, (job_id, specs) in asked.items():
            try:
                options = options_in(_help(hub, job_id))
            except Unchecked as error:
                findings.unchecked[command_line(program)] = str(error)
            else:
                findings.drift.extend(_drift(program, specs, options, lines))
    except BaseException:
        with suppress(OstlerError):
            for job_id, _ in asked.values():
                hub.cancel(job_id)
        raise
    return findings


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
    values = _values_of(spec)
    while end < len(command) and not command[end].startswith(("-", "$")) and command[end] not in values:
        end += 1
    return tuple(command[:end])


def _values_of(spec: "JobSpec") -> set[str]:
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


def _ask(hub: "Hub", program: Program, spec: "JobSpec") -> str:
    if PurePath(program[0]).name in SHELLS and not any(part.endswith(".py") for part in program):
        raise Unchecked("a shell's line does not tell its options")
    answer = hub.submit(
        {
            "name": f"check: {command_line(program)}"[:128],
            "command": [*program, "--help"],
            "env": {**spec.env, **WIDE},
            "labels": spec.labels,
            "allowed_hosts": spec.allowed_hosts,
            "denied_hosts": spec.denied_hosts,
            "scheduling_timeout_seconds": PLACED_WITHIN_S,
            "max_runtime_hours": RUNS_AT_MOST_H,
        }
    )
    return str(answer["id"])


def _help(hub: "Hub", job_id: str) -> str:
    from ostler.client.errors import WaitTimeout
    from ostler.client.job import wait_for_end

    try:
        job = wait_for_end(hub, job_id, ENDED_WITHIN_S)
        if job["state"] != states.SUCCEEDED:
            raise Unchecked(f"its --help {told_end(job)}")
        told = b""
        for chunk in hub.logs(job_id):
            told += chunk
            if len(told) > MOST_HELP_BYTES:
                break
    except WaitTimeout:
        hub.cancel(job_id)
        raise Unchecked(f"its --help had not ended after {ENDED_WITHIN_S} s") from None
    return told.decode("utf-8", "replace")


def options_in(told: str) -> set[str]:
    """The names of the long options in a help text."""
    plain = _COLOUR.sub("", told)
    if _COMMANDS.search(plain):
        raise Unchecked("it has commands with options of their own; name one in the manifest's command")
    found: set[str] = set()
    for negated, name in _OPTION.findall(plain):
        name = name.rstrip(".")
        found |= {name, f"{negated.strip('[]')}{name}"}
    if not found:
        raise Unchecked("its --help shows no options")
    return found


def _drift(program: Program, specs: "list[JobSpec]", options: set[str], lines: Mapping[str, int]) -> list[Drift]:
    """The jobs of one entry share their line, and what is wrong with them is said once."""
    found: dict[tuple[int, str], list[str]] = {}
    for spec in specs:
        for key in handed_over(spec):
            if key not in options:
                found.setdefault((lines.get(spec.id, 1), key), []).append(spec.name)
    return [
        Drift(line, jobs, key, command_line(program), next(iter(get_close_matches(key, sorted(options), 1)), ""))
        for (line, key), jobs in sorted(found.items())
    ]
