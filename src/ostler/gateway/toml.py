"""Tables written as TOML that people go on editing: a command over several lines stays one."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ostler.gateway.spelling import quoted, spell

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def written(tables: Mapping[str, Any]) -> str:
    return "\n".join(_lines((), tables)).strip("\n") + "\n"


def _lines(path: tuple[str, ...], table: Mapping[str, Any]) -> Iterator[str]:
    values = {name: value for name, value in table.items() if not isinstance(value, dict)}
    if path and (values or not table):
        yield f"\n[{spell(*path)}]"
    for name, value in values.items():
        yield f"{spell(name)} = {_value(value)}"
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _lines((*path, name), value)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        items = [f"{spell(name)} = {_value(item)}" for name, item in value.items()]
        return f"{{ {', '.join(items)} }}" if items else "{}"
    return repr(value)


def _text(text: str) -> str:
    if _UNPRINTABLE.search(text) or "'''" in text or text.endswith("'"):
        return quoted(text)
    if "\n" in text:
        return f"'''\n{text}'''"
    return f"'{text}'" if ("\\" in text or '"' in text) and "'" not in text else quoted(text)
