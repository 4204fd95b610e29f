"""Every key of `[models]` and `[gateway]`, and how its value is read."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, time
from typing import Any, NamedTuple

from ostler.domain.errors import BadInput
from ostler.domain.labels import parse_constraint
from ostler.domain.origins import normalize
from ostler.domain.quantities import parse_duration, parse_size
from ostler.gateway import argv
from ostler.gateway.control import Filters
from ostler.gateway.spelling import nearest, spell, told

GIB = 1024**3
LEAST_BYTES = 1024**2
"""A plain number below this is in GiB: no model has less than a MiB, and none a PiB."""
NO_CHECK = "none"
AUTO = "auto"

_ORIGIN = re.compile(r"https?://[^/?#@\s]+/?")

Read = Callable[[Any, str], Any]
"""The value at this place, as the rest of the gateway wants it, or BadInput."""


class Key(NamedTuple):
    field: str
    read: Read


Keys = Mapping[str, Key]


def wrong(where: str, what: str) -> BadInput:
    return BadInput(f"{where}: {what}", [(where, what)])


def unknown(name: str, keys: Keys) -> str:
    meant = _ELSEWHERE.get(name, "")
    return f"unknown key {name!r}" + (f"; did you mean {meant!r}?" if meant in keys else nearest(name, keys))


def shown(value: Any) -> str:
    """A value in an error, in few characters."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        text = repr(value)
        return text if len(text) <= 60 else text[:59] + "…"
    return "a list" if isinstance(value, list) else "a table" if isinstance(value, dict) else "a date or a time"


def text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise wrong(where, f"must be a string, not {shown(value)}")
    if "\0" in value:
        raise wrong(where, "must not contain NUL characters")
    return value


def word(value: Any, where: str) -> str:
    if not text(value, where).strip():
        raise wrong(where, "must not be empty")
    return str(value)


def flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise wrong(where, f"must be true or false, not {shown(value)}")
    return value


def table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong(where, f"must be a table, not {shown(value)}")
    return value


@dataclass(frozen=True)
class OneOf:
    choices: tuple[str, ...]

    def __call__(self, value: Any, where: str) -> str:
        if value not in self.choices:
            near = nearest(value, self.choices) if isinstance(value, str) else f"; there are {', '.join(self.choices)}"
            raise wrong(where, f"{shown(value)} is not one of its values{near}")
        return str(value)


@dataclass(frozen=True)
class Whole:
    low: int
    high: int = 1_000_000_000

    def __call__(self, value: Any, where: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not self.low <= value <= self.high:
            raise wrong(where, f"must be a whole number from {self.low} to {self.high}, not {shown(value)}")
        return value


@dataclass(frozen=True)
class Number:
    low: float
    endless: bool = False

    def __call__(self, value: Any, where: str) -> float:
        ok = isinstance(value, int | float) and not isinstance(value, bool)
        if not ok or not value >= self.low or (value == math.inf and not self.endless):
            upto = " to inf" if self.endless else " on"
            raise wrong(where, f"must be a number from {self.low:g}{upto}, not {shown(value)}")
        return float(value)


@dataclass(frozen=True)
class Seconds:
    some: bool = False

    def __call__(self, value: Any, where: str) -> float:
        found: float = _in_full(parse_duration, value, where)
        if self.some and not found:
            raise wrong(where, "must be more than 0")
        return found


def gib(value: Any, where: str) -> float:
    """'16g', a number of bytes, or a small number of GiB."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < LEAST_BYTES:
        return float(value)
    return size(value, where) / GIB


def gib_or_auto(value: Any, where: str) -> float | None:
    """The same, or `auto`: what it was seen to take."""
    return None if value == AUTO else gib(value, where)


def size(value: Any, where: str) -> int:
    if not isinstance(value, str | int | float):
        raise wrong(where, f"must be a size such as '8g', not {shown(value)}")
    found: int = _in_full(parse_size, value, where)
    return found


def command(value: Any, where: str) -> list[str]:
    """A list of arguments as it is; a string is split, without a shell."""
    if isinstance(value, str):
        try:
            words = argv.split(value)
        except ValueError as error:
            raise wrong(where, f"cannot be split into words: {error}") from None
    else:
        words = Each(_argument)(value, where)
    if not words or not words[0]:
        raise wrong(where, "must name a program")
    if any("\0" in one for one in words):
        raise wrong(where, "must not contain NUL characters")
    return words


def _argument(value: Any, where: str) -> str:
    """A number is taken as it is written: a macro may have brought it."""
    if isinstance(value, int | float):
        return shown(value)
    return text(value, where)


@dataclass(frozen=True)
class Each:
    """A list, of which every item is read; all that are wrong are told of."""

    read: Read

    def __call__(self, value: Any, where: str) -> list[Any]:
        if not isinstance(value, list):
            raise wrong(where, f"must be a list, not {shown(value)}")
        return gather([(item, f"{where}[{index}]") for index, item in enumerate(value)], self.read)


def gather(places: list[tuple[Any, str]], read: Read) -> list[Any]:
    found, errors = [], list[tuple[str, str]]()
    for value, where in places:
        try:
            found.append(read(value, where))
        except BadInput as error:
            errors += error.errors
    if errors:
        raise BadInput(told(errors), errors)
    return found


def label(value: Any, where: str) -> str:
    return str(_in_full(parse_constraint, word(value, where), where))


def _in_full(parse: Read, value: Any, where: str) -> Any:
    """Its error, with what to write instead."""
    try:
        return parse(value, where)
    except BadInput as error:
        raise wrong(where, str(error).removeprefix(f"{where}: ")) from None


def env(value: Any, where: str) -> dict[str, str]:
    variables = table(value, where)
    places = [(item, f"{where}.{spell(name)}") for name, item in variables.items()]
    values = gather(places, _variable)
    for (_, place), name in zip(places, variables, strict=True):
        if not name or "=" in name or "\0" in name:
            raise wrong(place, "a variable's name must be non-empty, without '=' and NUL")
    return dict(zip(variables, values, strict=True))


def _variable(value: Any, where: str) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return text(value, where)


def plain(value: Any, where: str) -> Any:
    """What JSON can hold."""
    if isinstance(value, date | time):
        raise wrong(where, "dates and times must be in quotes")
    if isinstance(value, float) and not math.isfinite(value):
        raise wrong(where, f"must be a finite number, not {value}")
    if isinstance(value, list):
        return Each(plain)(value, where)
    if isinstance(value, dict):
        items = gather([(item, f"{where}.{spell(name)}") for name, item in value.items()], plain)
        return dict(zip(value, items, strict=True))
    return value


def plain_table(value: Any, where: str) -> dict[str, Any]:
    found: dict[str, Any] = plain(table(value, where), where)
    return found


def check_path(value: Any, where: str) -> str:
    path = text(value, where)
    if path != NO_CHECK and not path.startswith("/"):
        raise wrong(where, f"must be a path that begins with '/', or 'none', not {shown(path)}")
    return path


def loading_updates(value: Any, where: str) -> Any:
    if not (isinstance(value, bool) or value == "text"):
        raise wrong(where, f"must be true, false or 'text', not {shown(value)}")
    return value


def origin(value: Any, where: str) -> str:
    """Of pages, as browsers name it: a scheme, a host and perhaps a port."""
    given = word(value, where).strip()
    if given != "*" and not (_ORIGIN.fullmatch(given) and normalize(given)):
        raise wrong(where, f"must be an origin such as 'https://chat.example', or '*', not {shown(given)}")
    return given.rstrip("/")


def filters(value: Any, where: str) -> Filters:
    given = table(value, where)
    known: dict[str, Read] = {"strip": Each(word), "set": plain_table}
    errors, found = list[tuple[str, str]](), dict[str, Any]()
    for name in given:
        place = f"{where}.{spell(name)}"
        if name not in known:
            errors.append((place, f"unknown key {name!r}{nearest(name, known)}"))
            continue
        try:
            found[name] = known[name](given[name], place)
            if "model" in found[name]:
                errors.append((place, "'model' is never touched; its name there is `upstream_name`"))
        except BadInput as error:
            errors += error.errors
    if errors:
        raise BadInput(told(errors), errors)
    return Filters(**found)


MODEL_KEYS: Keys = {
    "cmd": Key("command", command),
    "cmd_stop": Key("stop_command", command),
    "port": Key("port", Whole(1, 65_535)),
    "env": Key("env", env),
    "aliases": Key("aliases", Each(word)),
    "name": Key("title", text),
    "description": Key("description", text),
    "metadata": Key("metadata", plain_table),
    "unlisted": Key("unlisted", flag),
    "ttl": Key("ttl_s", Seconds()),
    "pinned": Key("pinned", flag),
    "vram": Key("vram_gb", gib_or_auto),
    "memory": Key("memory_gb", gib_or_auto),
    "gpus": Key("gpus", Whole(0)),
    "cpus": Key("cpus", Number(0)),
    "labels": Key("labels", Each(label)),
    "check": Key("check", check_path),
    "load_timeout": Key("load_timeout_s", Seconds(some=True)),
    "stop_timeout": Key("stop_timeout_s", Seconds()),
    "concurrency": Key("concurrency", Whole(1)),
    "queue_limit": Key("queue_limit", Whole(0)),
    "request_limit": Key("request_limit", Whole(1)),
    "priority": Key("priority", Whole(-1_000_000, 1_000_000)),
    "filters": Key("filters", filters),
    "upstream_name": Key("upstream_name", word),
    "on_client_abort": Key("on_client_abort", OneOf(("cancel", "drain"))),
    "max_instances": Key("max_instances", Whole(1)),
    "load_s": Key("load_s", Seconds(some=True)),
    "loading_updates": Key("loading_updates", loading_updates),
}

GATEWAY_KEYS: Keys = {
    "scheduler": Key("scheduler", OneOf(("serial", "fifo"))),
    "groups": Key("groups", table),
    "sets": Key("sets", Each(Each(word))),
    "evict_costs": Key("evict_costs", table),
    "quantum": Key("quantum", Number(0, endless=True)),
    "preload": Key("preload", Each(word)),
    "api_keys": Key("api_keys", Each(lambda value, where: value)),
    "loading_updates": Key("loading_updates", loading_updates),
    "peers": Key("peers", table),
    "url": Key("url", word),
    "macros": Key("macros", table),
    "max_body": Key("max_body_bytes", size),
    "cors_origins": Key("cors_origins", Each(origin)),
}

GROUP_KEYS: Keys = {
    "members": Key("members", Each(word)),
    "swap": Key("swap", flag),
    "exclusive": Key("exclusive", flag),
    "persistent": Key("persistent", flag),
}

CALLER_KEYS: Keys = {
    "key": Key("key", word),
    "key_env": Key("key_env", word),
    "user": Key("user", word),
    "in_flight": Key("in_flight", Whole(1)),
}
"""Of an entry of `api_keys`."""

PEER_KEYS: Keys = {
    "url": Key("url", word),
    "api_key": Key("api_key", word),
    "api_key_env": Key("api_key_env", word),
    "models": Key("models", Each(word)),
    "filters": Key("filters", filters),
}

_ELSEWHERE = {
    "command": "cmd",
    "cmdStop": "cmd_stop",
    "proxy": "port",
    "checkEndpoint": "check",
    "health_check": "check",
    "healthCheckTimeout": "load_timeout",
    "unloadTimeout": "stop_timeout",
    "useModelName": "upstream_name",
    "concurrencyLimit": "request_limit",
    "sendLoadingState": "loading_updates",
    "ram": "memory",
    "gpu": "gpus",
    "cpu": "cpus",
    "cores": "cpus",
    "apiKeys": "api_keys",
    "apiKey": "api_key",
}
"""Words for the same thing, of others and of this project's other files."""
