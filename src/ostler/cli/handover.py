"""The hyper values that a job's command hands to its program as options, and which program that is."""

from collections.abc import Iterable
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ostler.domain.job import JobSpec

Program = tuple[str, ...]


class Value(NamedTuple):
    """A value of a hyper key, as the command has it."""

    key: str
    word: str | None
    """None: the option stands alone."""
    is_joined: bool = False
    """Whether the command has `--key=word`, one argument."""

    def arguments(self) -> list[str]:
        if self.word is None:
            return [f"--{self.key}"]
        return [f"--{self.key}={self.word}"] if self.is_joined else [f"--{self.key}", self.word]

    def may_be_a_path(self) -> bool:
        return self.word is not None and is_like_a_path(self.word)


def is_like_a_path(word: str) -> bool:
    return "/" in word or "\\" in word or word.startswith("~")


def program_of(spec: "JobSpec") -> Program:
    """The command up to its first option: `python -m trainer`, `torchrun --nproc-per-node 2 train.py`, `trainer fit`.

    The program ends before the job's own values, so that one program is not asked once for each of them. It ends before
    the first path too, because a program may write to a file that it is given.
    """
    command = spec.command
    scripts = [place for place, part in enumerate(command) if part.endswith(".py")]
    modules = [place + 1 for place, part in enumerate(command[:-1]) if part == "-m"]
    named = [*scripts, *modules, *_script_of_an_interpreter(command)]
    end = 1 + next(iter(named), 0)
    values = _texts_of(spec)
    while end < len(command) and not _ends_program(command[end]) and command[end] not in values:
        end += 1
    return tuple(command[:end])


def _script_of_an_interpreter(command: list[str]) -> list[int]:
    """Where the script is in `python bin/train`."""
    is_python = PurePath(command[0]).name.startswith(("python", "{python}"))
    return [1] if is_python and len(command) > 1 and not command[1].startswith(("-", "$")) else []


def _ends_program(part: str) -> bool:
    return part.startswith(("-", "$")) or is_like_a_path(part)


def _texts_of(spec: "JobSpec") -> set[str]:
    training = spec.training
    if training is None:
        return set()
    own = (spec.name, training.model, training.mode, training.split_recipe, training.seed, training.n_resamples)
    return {str(value) for value in (*own, *training.hyper.values())}


def handed_over(spec: "JobSpec") -> list[str]:
    """The hyper keys that are options of the command. One that is false stands nowhere, and goes with the others."""
    hyper = spec.training.hyper if spec.training else {}
    options = {part.partition("=")[0] for part in spec.command}
    given = [key for key in hyper if f"--{key}" in options]
    silent = [key for key, value in hyper.items() if value is False and key not in given]
    return [*given, *silent] if len(given) + len(silent) == len(hyper) else given


def values_of(specs: "Iterable[JobSpec]") -> list[Value]:
    """The different values that these jobs hand over, each once."""
    found = (_value_of(spec, key) for spec in specs for key in handed_over(spec))
    return list(dict.fromkeys(value for value in found if value is not None))


def _value_of(spec: "JobSpec", key: str) -> Value | None:
    """The value as the command has it. None for a key that stands nowhere in the command."""
    assert spec.training is not None
    option, command = f"--{key}", spec.command
    place = next((at for at, part in enumerate(command) if part.partition("=")[0] == option), None)
    if place is None:
        return None
    if command[place] != option:
        return Value(key, command[place].partition("=")[2], is_joined=True)
    word = next(iter(command[place + 1 :]), None)
    # {hyper...} writes a true value as the option alone, and {key} writes the word.
    is_bare = spec.training.hyper[key] is True and word != "true"
    return Value(key, None if is_bare else word)
