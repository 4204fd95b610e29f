"""What a Python program takes on its command line, read from the help that argparse, click and typer print."""

import re
from collections.abc import Callable
from typing import NamedTuple

_OPTION = re.compile(r"(?<![\w-])--(\[no-?\])?([A-Za-z0-9][\w.-]*)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_COMMANDS = re.compile(r"^\W*commands\b|(?<!\[)\{[\w,-]+\} \.\.\.", re.IGNORECASE | re.MULTILINE)
_TYPE = r"(?<![\w-])--{name}(?:[ ,/|]+--?[\w-]+)* +(INTEGER|FLOAT|BOOLEAN|<[^<>\n]+>|\[[^\s\[\]]+\])(?=\s|$)"
"""What click and typer show behind an option: the word for its type, as FLOAT or <float>, or choices between bars."""
_FLAG = r"^ {{1,8}}(?:-(?:(?!  ).)*, )?--{name}(?![\w.-])((?:, -[\w.-]+)*(?:  .*)?$)?"
"""The line of an argparse option. The group matches where no word for a value follows: the option is a flag. Lines of
descriptions have deeper margins."""
_REFUSED = re.compile(r"error: argument (\S+): (.+)")
_AMBIGUOUS = re.compile(r"error: ambiguous option: --([\w.-]+)\S* (could match .+)")
ARGPARSE, CLICK = "argparse", "click"
SIGNS = {ARGPARSE: "show this help message and exit", CLICK: "Show this message and exit"}
"""What the parsers write beside --help: other programs print help too, but it need not list all that they take."""
WORDS_OF_TRUTH = {"1", "true", "t", "yes", "y", "on", "0", "false", "f", "no", "n", "off"}
"""What click takes for a BOOLEAN."""


class Unchecked(Exception):
    """It is not known what this program takes."""


class Refusal(NamedTuple):
    """The parser's error about one option."""

    names: set[str]
    why: str

    def keys_among(self, keys: set[str]) -> set[str]:
        """Those of the keys that it is about: argparse names an option in full, and a key may be its beginning."""
        return keys & self.names or {key for key in keys if any(name.startswith(key) for name in self.names)}

    def is_about_the_value(self) -> bool:
        """Whether it would be the same without the other options on the command line."""
        return self.why.startswith(("invalid ", "expected ", "could match "))


def interface_of(text: str) -> str:
    """Which parser printed this help. Unchecked where it is none of those whose help lists every option."""
    plain = _COLOUR.sub("", text)
    for kind, sign in SIGNS.items():
        if sign.lower() in plain.lower():
            return kind
    raise Unchecked("its --help is not that of argparse, click or typer")


def options_in(text: str) -> set[str]:
    """The names of the long options in a help text."""
    plain = _COLOUR.sub("", text)
    if _COMMANDS.search(plain):
        raise Unchecked("it has commands with options of their own; name one in the manifest's command")
    found: set[str] = set()
    for negated, name in _OPTION.findall(plain):
        name = name.rstrip(".")
        found |= {name, f"{negated.strip('[]')}{name}"}
    if not found:
        raise Unchecked("its --help shows no options")
    return found


def option_for(kind: str, options: set[str], key: str) -> str:
    """The option that the program takes for this key; empty where it takes none.

    Argparse also takes the beginning of an option's name. Where several begin so, argparse itself refuses the key.
    """
    if key in options:
        return key
    longer = [option for option in options if option.startswith(key)] if kind == ARGPARSE else []
    return longer[0] if len(longer) == 1 else key if longer else ""


def refusal_in(output: str) -> Refusal | None:
    """The error with which argparse refused an option or its value."""
    plain = _COLOUR.sub("", output)
    found = _REFUSED.search(plain) or _AMBIGUOUS.search(plain)
    if found is None:
        return None
    return Refusal({name.lstrip("-") for name in found[1].split("/")}, found[2].strip())


def fault_of(kind: str, text: str, key: str, word: str | None) -> str:
    """Why an option cannot have this word behind it, as far as the help text shows; empty where it may.

    None: the option stands alone.
    """
    plain = _COLOUR.sub("", text)
    if kind == ARGPARSE:
        line = re.search(_FLAG.format(name=re.escape(key)), plain, re.MULTILINE)
        is_flag = line is not None and line[1] is not None
        return "it takes no value" if is_flag and word is not None else ""
    found = re.search(_TYPE.format(name=re.escape(key)), plain)
    if found is None:
        return ""
    shown = found[1]
    fits = _test_of(shown.strip("[<>]").lower())
    if fits is None:
        return ""
    if word is None:
        # Typer shows an option that counts how often it stands there like one that takes a whole number.
        return "" if shown == "<int>" else f"it takes a value, {shown}"
    return "" if fits(word) else f"it takes {shown}"


def _test_of(shown: str) -> Callable[[str], bool] | None:
    """Whether a word is of this type. None: any may be."""
    kind = shown.partition(" ")[0]  # of "float range" too
    if "%" in shown:
        return None  # the forms of a date
    if "|" in shown:
        return lambda word: word.lower() in shown.split("|")
    if kind in ("bool", "boolean"):
        return lambda word: word.lower() in WORDS_OF_TRUTH
    if kind in ("int", "integer"):
        return lambda word: _reads(int, word)
    return (lambda word: _reads(float, word)) if kind == "float" else None


def _reads(read: Callable[[str], object], word: str) -> bool:
    try:
        read(word)
    except ValueError:
        return False
    return True
