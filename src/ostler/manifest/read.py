"""From the manifest's text to host policies and job specs: all of it, or one error that names everything wrong."""

import re
import tomllib
from typing import Any

import msgspec

from ostler.domain.errors import TooLarge, Unreadable
from ostler.domain.hosts import HostPolicy
from ostler.domain.job import JobSpec
from ostler.manifest.entries import entries_of
from ostler.manifest.keys import CAPABILITY_KEYS, HOST_KEYS, TOP_KEYS, check
from ostler.manifest.locate import Path, Refused, places
from ostler.manifest.problems import Enough, Problems
from ostler.manifest.specs import Specs

MAX_BYTES = 4 * 1024 * 1024
_POSITION = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    hosts: dict[str, HostPolicy] = {}
    specs: list[JobSpec] = []
    lines: dict[str, int] = {}
    """By job id, the line of its entry."""


def read(text: str | bytes, file: str = "manifest.toml") -> Manifest:
    """The manifest in this text, or BadInput; what is not TOML is Unreadable."""
    decoded = _decoded(text, file)
    line_of = _entry_lines(decoded, file)
    tables = _tables(decoded, file)
    problems = Problems()
    specs = Specs(problems, line_of)
    hosts: dict[str, HostPolicy] = {}
    try:
        top = check(tables, (), TOP_KEYS, problems).values
        hosts = {name: _policy(name, host, problems) for name, host in top.get("hosts", {}).items()}
        for entry in entries_of(top, problems):
            specs.add(entry)
    except Enough:
        pass
    if problems:
        raise problems.error(decoded, file)
    return Manifest(hosts=hosts, specs=list(specs.made.values()), lines=specs.lines)


def _decoded(text: str | bytes, file: str) -> str:
    try:
        data = text.encode() if isinstance(text, str) else text
        if len(data) > MAX_BYTES:
            what = f"has {len(data)} bytes; a manifest may have {MAX_BYTES}. Put data into files, not into the manifest"
            raise TooLarge(f"{file} {what}", [(file, what)])
        # As the reader of TOML does it, so that lines are counted alike.
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise _not_toml(file, error.object.count(b"\n", 0, error.start) + 1, "not UTF-8") from None
    except UnicodeEncodeError as error:
        raise _not_toml(file, error.object.count("\n", 0, error.start) + 1, "not UTF-8") from None


def _entry_lines(text: str, file: str) -> dict[Path, int]:
    lines: dict[Path, int] = {}
    try:
        for path, line in places(text):
            if len(path) == 2 and path[0] in ("jobs", "sweeps"):
                lines.setdefault(path, line)
    except Refused as error:
        raise _not_toml(file, error.line, str(error)) from None
    return lines


def _tables(text: str, file: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except ValueError as error:
        what = str(error)
        found = _POSITION.search(what)
        if found is None or found[1] is None:
            raise _not_toml(file, text.count("\n") + 1, _POSITION.sub("", what) + " at the end") from None
        raise _not_toml(file, int(found[1]), f"{what[: found.start()]} at column {found[2]}") from None


def _not_toml(file: str, line: int, what: str) -> Unreadable:
    where = f"{file}:{line}"
    return Unreadable(f"{where}: cannot be read as TOML: {what}", [(where, what)])


def _policy(name: str, host: dict[str, Any], problems: Problems) -> HostPolicy:
    path: Path = ("hosts", name)
    given = check(host, path, HOST_KEYS, problems).values
    caps = check(given.get("capability", {}), (*path, "capability"), CAPABILITY_KEYS, problems).values
    lists = {key: tuple(given.get(key, [])) for key in ("allow_jobs", "deny_jobs")}
    return msgspec.convert(lists | caps, HostPolicy)
