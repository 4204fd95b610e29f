"""Who is told of what becomes of a job, and how: what a spec names, and what an operator writes under [notify].

[notify]
allow = ["10.1.0.0/16"]           # networks inside the house that webhooks of jobs may reach; otherwise none
ntfy = "https://ntfy.sh"          # where `ntfy:TOPIC` is published
[notify.targets.team]             # a job says --notify team
url = "https://hooks.example/T0/B1"
[notify.targets.mail]
command = ["mail", "-s", "{title}", "ann@lab.example"]    # the notice is its standard input
on = ["failed", "lost"]           # what it hears of; else what the job says, else everything
every = true                      # of every job, whatever it says
"""

import re
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any
from urllib.parse import urlsplit

import msgspec

from ostler.domain.errors import BadInput

END, FAILED, LOST, PREEMPTED = "end", "failed", "lost", "preempted"
EVENTS = (END, FAILED, LOST, PREEMPTED)
"""It has ended, however; it has ended without success; its machine was lost, or it gave way, and it waits again."""
MOST_OF_A_JOB = 8
MAX_LENGTH = 2048
NTFY = "ntfy:"
PUBLIC_NTFY = "https://ntfy.sh"
TOPIC = re.compile(r"[A-Za-z0-9_-]{1,64}")
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")

Network = IPv4Network | IPv6Network


class Target(msgspec.Struct, frozen=True):
    """One of `url`, `topic` and `command`."""

    url: str = ""
    topic: str = ""
    command: tuple[str, ...] = ()
    on: tuple[str, ...] = ()
    every: bool = False
    trusted: bool = False
    """The operator's own: it may be anywhere."""


class NotifySettings(msgspec.Struct, frozen=True):
    targets: dict[str, Target] = {}
    allow: tuple[Network, ...] = ()
    ntfy: str = PUBLIC_NTFY


def problems(targets: Sequence[str], on: Sequence[str]) -> list[tuple[str, str]]:
    """What is wrong with those of a spec."""
    found = [("notify_on", f"{word[:40]!r} is not one of {', '.join(EVENTS)}") for word in on if word not in EVENTS]
    if on and not targets:
        found.append(("notify_on", "says when, and notify does not say whom"))
    if len(targets) > MOST_OF_A_JOB:
        return [*found, ("notify", f"a job tells at most {MOST_OF_A_JOB}")]
    return found + [("notify", f"{text[:80]!r} is {what}") for text in targets if (what := _wrong_with(text))]


def _wrong_with(text: str) -> str:
    if is_address(text):
        return _wrong_with_address(text)
    if text.startswith(NTFY):
        return "" if TOPIC.fullmatch(text.removeprefix(NTFY)) else "no topic of ntfy; write it like ntfy:my-runs"
    return "" if NAME.fullmatch(text) else "neither an address, nor ntfy:TOPIC, nor the name of a target of the hub's"


def is_address(text: str) -> bool:
    return text.startswith(("http://", "https://"))


def _wrong_with_address(text: str) -> str:
    try:
        parts = urlsplit(text)
        known = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        known = False
    plain = len(text) <= MAX_LENGTH and text.isascii() and all(char > " " for char in text)
    return "" if known and plain else "no address; write it like https://hooks.example/abc"


def read_notify(table: Mapping[str, Any], where: str = "notify") -> NotifySettings:
    """The table, or BadInput that names the first mistake in it."""
    _must_be_known(table, ("targets", "allow", "ntfy"), where)
    ntfy = table.get("ntfy", PUBLIC_NTFY)
    if not isinstance(ntfy, str) or not is_address(ntfy) or _wrong_with_address(ntfy):
        raise _wrong(f"{where}.ntfy", f"must be the address of an ntfy server, like {PUBLIC_NTFY!r}")
    targets = table.get("targets", {})
    if not isinstance(targets, dict):
        raise _wrong(f"{where}.targets", f"must be a table: [{where}.targets.NAME]")
    return NotifySettings(
        {name: _target(name, given, f"{where}.targets.{name}") for name, given in targets.items()},
        tuple(_networks(table.get("allow", []), f"{where}.allow")),
        ntfy.rstrip("/"),
    )


def _target(name: str, given: Any, where: str) -> Target:
    if NAME.fullmatch(name) is None:
        raise _wrong(where, "a target's name begins with a letter, and has letters, digits, '_', '.' and '-'")
    if not isinstance(given, dict):
        raise _wrong(where, f"must be a table: [{where}]")
    _must_be_known(given, ("url", "topic", "command", "on", "every"), where)
    if sum(key in given for key in ("url", "topic", "command")) != 1:
        raise _wrong(where, "must have one of url, topic and command")
    try:
        found = msgspec.convert({**given, "trusted": True}, Target)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$")
        raise _wrong(where + path.strip("`"), what) from None
    if unknown := [word for word in found.on if word not in EVENTS]:
        raise _wrong(f"{where}.on", f"{unknown[0]!r} is not one of {', '.join(EVENTS)}")
    if found.url and (not is_address(found.url) or _wrong_with_address(found.url)):
        raise _wrong(f"{where}.url", "must be an address, like 'https://hooks.example/abc'")
    if found.topic and TOPIC.fullmatch(found.topic) is None:
        raise _wrong(f"{where}.topic", "must be a topic of ntfy, like 'my-runs'")
    if not (found.url or found.topic or (found.command and found.command[0])):
        raise _wrong(where, "is empty")
    return found


def _networks(given: Any, where: str) -> list[Network]:
    if not isinstance(given, list):
        raise _wrong(where, "must be a list of networks, like ['10.1.0.0/16']")
    try:
        return [ip_network(text) for text in given]
    except ValueError as error:
        raise _wrong(where, f"{error}; write a network like '10.1.0.0/16'") from None


def _must_be_known(table: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in table:
        if key not in known:
            raise _wrong(f"{where}.{key}", f"unknown key {key!r}; known are {', '.join(known)}")


def _wrong(where: str, what: str) -> BadInput:
    return BadInput(f"{where}: {what}", [(where, what)])
