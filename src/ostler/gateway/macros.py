"""Macros of the configuration: `${NAME}`, `${env.X}`, `${MODEL_ID}`, `${PORT}`, `${PID}`. `$${` is a plain `${`."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ostler.domain.errors import BadInput
from ostler.gateway.spelling import nearest, spell, told

_REFERENCE = re.compile(r"\$\$\{|\$\{([^{}]*)\}")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}")
ENV = "env."
ONLY_IN = {
    "PORT": "is known only where the server starts: write it into cmd; a variable is set by cmd = 'env NAME=${PORT} …'",
    "PID": "is known only while the server runs: it can stand in cmd_stop alone",
    "MODEL_ID": "stands for a model's name: it can be used in [models] only",
}
"""What a value is put in for later, and where that is possible."""

Value = str | int | float | bool


class Macros:
    """What `[gateway.macros]` defines. A macro that is wrong is told of once, in `problems`, not at each use."""

    def __init__(self, given: Mapping[str, Any], env: Mapping[str, str]) -> None:
        self._values = dict(given)
        self._env = env
        found = {name: list(self._faults(name, value)) for name, value in self._values.items()}
        self.problems = [(spell("gateway", "macros", name), what) for name, faults in found.items() for what in faults]
        self._broken = {name for name, faults in found.items() if faults}

    def expand(self, value: Any, where: str, own: Mapping[str, Value]) -> Any:
        """The value with its macros put in, however deep; `own` are those of its place. A text that is one macro and
        nothing else becomes what the macro is, so that a number stays a number."""
        errors: list[tuple[str, str]] = []
        expanded = self._inside(value, where, own, errors)
        if errors:
            raise BadInput(told(errors), errors)
        return expanded

    def _inside(self, value: Any, where: str, own: Mapping[str, Value], errors: list[tuple[str, str]]) -> Any:
        if isinstance(value, str):
            wrong: list[str] = []
            expanded = self._text(value, own, wrong)
            errors += [(where, what) for what in dict.fromkeys(wrong)]
            return expanded
        if isinstance(value, list):
            return [self._inside(item, f"{where}[{index}]", own, errors) for index, item in enumerate(value)]
        if isinstance(value, dict):
            return {name: self._inside(item, f"{where}.{spell(name)}", own, errors) for name, item in value.items()}
        return value

    def _text(self, text: str, own: Mapping[str, Value], wrong: list[str]) -> Value:
        whole = _REFERENCE.fullmatch(text)
        if whole is not None and whole[1] is not None:
            return self._value(whole[1], own, wrong)

        def put_in(found: re.Match[str]) -> str:
            return "${" if found[1] is None else _as_text(self._value(found[1], own, wrong))

        return _REFERENCE.sub(put_in, text)

    def _value(self, name: str, own: Mapping[str, Value], wrong: list[str]) -> Value:
        if name in own:
            return own[name]
        if name in ONLY_IN:
            wrong.append(f"${{{name}}} {ONLY_IN[name]}")
        elif what := self._missing(name):
            wrong.append(what)
        elif name.startswith(ENV):
            return self._env[name.removeprefix(ENV)]
        elif name not in self._broken:
            value: Value = self._values[name]
            return self._text(value, own, wrong) if isinstance(value, str) else value
        return ""

    def _missing(self, name: str) -> str:
        if name.startswith(ENV):
            variable = name.removeprefix(ENV)
            return "" if variable in self._env else f"the variable {variable!r} is not set where the hub runs"
        return "" if name in self._values else f"there is no macro {name!r}{nearest(name, self._values | ONLY_IN)}"

    def _faults(self, name: str, value: Any) -> Iterator[str]:
        if not _NAME.fullmatch(name):
            yield "a macro's name has at most 63 letters, digits, '-' and '_'"
        if name in ONLY_IN:
            yield f"${{{name}}} has a meaning of its own; choose another name"
        if not isinstance(value, Value):
            yield "must be a string, a number, true or false"
        for used in dict.fromkeys(_used(value)):
            if used not in ONLY_IN and (what := self._missing(used)):
                yield what
        if around := self._around(name, [name]):
            yield f"stands for itself: {' → '.join(around)}"

    def _around(self, name: str, trail: list[str]) -> list[str]:
        """The way from a macro back to itself."""
        for used in _used(self._values.get(trail[-1])):
            if used == name:
                return [*trail, name]
            if used not in trail and (found := self._around(name, [*trail, used])):
                return found
        return []


def _used(value: Any) -> list[str]:
    found = _REFERENCE.finditer(value) if isinstance(value, str) else iter(())
    return [reference[1] for reference in found if reference[1] is not None]


def _as_text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
