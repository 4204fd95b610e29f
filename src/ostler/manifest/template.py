"""Texts with names in braces: a command's arguments and the names of a sweep's jobs."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ostler.manifest.keys import MAX_EXACT

ALL_HYPER = "hyper..."
_TOKEN = re.compile(r"\{\{|\{([^{}]*+)\}|[{}]")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*|hyper\s*[.…][^{}]*")
"""What begins like `hyper...` is a name too: misspelt, it should not reach the program as it stands."""


class Part(NamedTuple):
    text: str
    is_name: bool = False


class Template(NamedTuple):
    parts: list[Part]
    names: Counter[str]
    """How often each stands in it."""
    plain: int
    """Characters that stay as they are."""


class TooLong(Exception):
    """Filled in, it would be longer than it may be."""


def parse(text: str) -> Template:
    parts = [part for part in _parts(text) if part.text]
    names = Counter(part.text for part in parts if part.is_name)
    return Template(parts, names, sum(len(part.text) for part in parts if not part.is_name))


def _parts(text: str) -> Iterator[Part]:
    """Doubled braces are literal ones. Braces around anything but a name stand for themselves, as do those that close
    these: JSON can be written as it is, with names inside it.
    """
    at = depth = 0
    while token := _TOKEN.search(text, at):
        yield Part(text[at : token.start()])
        at = token.end()
        inside = token[1]
        if inside is not None:
            is_name = _NAME.fullmatch(inside) is not None
            yield Part(inside if is_name else token[0], is_name)
        elif token[0] == "{{":
            yield Part("{")
        else:
            if token[0] == "{":
                depth += 1
            elif depth:
                depth -= 1
            elif text.startswith("}", at):
                at += 1
            yield Part(token[0])
    yield Part(text[at:])


def fill(template: Template, value_of: Callable[[str], Any], most: int) -> str:
    """The text with every name's value in it, at most so long."""
    values = {name: _spell(value_of(name)) for name in template.names}
    if template.plain + sum(len(values[name]) * often for name, often in template.names.items()) > most:
        raise TooLong
    return "".join(values[part.text] if part.is_name else part.text for part in template.parts)


def as_options(hyper: Mapping[str, Any]) -> list[str]:
    """`--key value` for each; `--key` alone for true, nothing for false."""
    options = []
    for name, value in hyper.items():
        if value is not False:
            options.append(f"--{name}")
        if not isinstance(value, bool):
            options.append(_json(value) if isinstance(value, list) else _spell(value))
    return options


def _spell(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(_json(item) if isinstance(item, list) else _spell(item) for item in value)
    return value if isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    """Numbers come out as Python prints them."""
    return json.dumps(one_spelling(value), separators=(",", ":"), ensure_ascii=False)


def one_spelling(value: Any) -> Any:
    """6 and 6.0 are one number to a job's id, so they are one to all that follows from it."""
    if isinstance(value, float) and value.is_integer() and abs(value) <= MAX_EXACT:
        return int(value)
    if isinstance(value, list):
        return [one_spelling(item) for item in value]
    if isinstance(value, dict):
        return {name: one_spelling(item) for name, item in value.items()}
    return value
