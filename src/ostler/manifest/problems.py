"""What is wrong with a manifest, gathered: people want to hear of all of it at once."""

from difflib import get_close_matches

from ostler.domain.errors import BadInput
from ostler.domain.job import ERRORS_TOLD
from ostler.manifest.locate import Path, locate, spell


class Enough(Exception):
    """As much is wrong as will be told."""


class Problems:
    def __init__(self) -> None:
        self._found: dict[tuple[Path, str], None] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, path: Path, what: str) -> None:
        self._found[path, what] = None
        if len(self._found) >= ERRORS_TOLD:
            raise Enough

    def error(self, text: str, file: str) -> BadInput:
        """All of it, in the order of the file."""
        lines = locate(text, {path for path, _ in self._found})
        found = sorted(self._found, key=lambda problem: lines[problem[0]])
        errors = [(f"{file}:{lines[path]}: {spell(path)}".removesuffix(": "), what) for path, what in found]
        told = [f"{where}: {what}" for where, what in errors]
        if len(errors) >= ERRORS_TOLD:
            told.append(f"these are the first {ERRORS_TOLD} errors; there may be more")
        return BadInput("\n".join(told), errors)


def nearest(name: str, valid: list[str], cutoff: float = 0.0) -> str:
    """The valid name most like this one, or "" where none is like it enough. Swapped letters are the likeliest slip."""
    short = name[:64].lower()
    same_letters = [word for word in valid if sorted(word) == sorted(short)]
    return next(iter(same_letters or get_close_matches(short, valid, n=1, cutoff=cutoff)), "")


def suggestion(name: str, valid: list[str], noun: str) -> str:
    likely = nearest(name, valid, cutoff=0.6)
    return f"did you mean {likely!r}?" if likely else f"the nearest valid {noun} is {nearest(name, valid)!r}"
