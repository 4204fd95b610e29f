"""The rule of the rooms: imports go down only, and no file or function grows without end.

ALLOWED is the rule. A new room, or a new way between two rooms, is one line here and a reason in the review.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "ostler"
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 80

ADAPTERS = {"ledger", "store", "runtime", "bridge"}
ALLOWED: dict[str, set[str]] = {
    "domain": set(),
    "core": {"domain"},
    "wire": {"domain"},
    "ledger": {"domain"},
    "store": {"domain"},
    "runtime": {"domain"},
    "archive": set(),
    "units": {"domain"},
    "manifest": {"domain"},
    "bridge": {"domain", "runtime"},  # a bridge is a Runtime over somebody else's scheduler
    "dashboard": set(),
    "tls": {"domain"},
    "config": {"domain", "tls"},
    "logformat": {"domain"},
    "hub": {"core", "wire", "domain", "config", "logformat", "tls", "dashboard", "archive", "manifest", "gateway"}
    | ADAPTERS,
    "worker": {"core", "wire", "domain", "config", "logformat", "tls", "archive", "pull"} | ADAPTERS,
    "gateway": {"core", "wire", "domain", "config", "tls"} | ADAPTERS,
    "client": {"domain", "wire", "config", "tls", "archive", "pull"},
    "cli": {"client", "domain", "wire", "config", "logformat", "tls", "archive", "units"},
    "sim": {"core", "domain", "ledger", "worker", "wire", "runtime"},
    "task": {"wire"},  # wire/beside.py: what is said to a command beside the task
    "pull": set(),  # one file that can be copied elsewhere; it makes the archives of the whole project
    "joblib": {"client"},  # front doors, for whoever speaks the language of another library
    "submitit": {"client"},
    "__init__": {"client"},
    "__main__": {"cli"},
}
"""For each room, the rooms it may import beside itself."""

ALLOWED_LATE: dict[str, set[str]] = {"cli": {"hub", "worker", "gateway", "sim", "runtime", "manifest", "bridge"}}
"""The same, for imports inside functions: `ostler jobs` must not load the hub, `ostler hub` must."""

ONLY_MSGSPEC = {"domain", "core"}
"""Rooms where the standard library and msgspec are all there is."""

BESIDE_MSGSPEC = {"ostler.core.placing.columns": {"numpy"}}
"""Modules of those rooms that need more, and are loaded only when they are needed."""

ENCODES_ITS_OWN = {
    "gateway/relay/fields.py",
    "hub/api/pull.py",
    "hub/api/templates.py",
    "hub/api/whatif.py",
    "hub/gateway/memory.py",
    "hub/new_job.py",
    "hub/secrets.py",
    "hub/settings.py",
}
"""Modules of the hub that encode what the hub itself reads again, or what a caller sent. All other JSON that leaves the
hub is encoded by ostler.domain.finite, so that each number in it is finite."""

NOT_IN_CORE = {
    "asyncio",
    "datetime",
    "logging",
    "os",
    "random",
    "socket",
    "subprocess",
    "threading",
    "time",
    "uuid",
}
"""Time, ids and randomness are arguments of the core, and it touches nothing: that is why it can be simulated."""


class Import(NamedTuple):
    line: int
    name: str
    late: bool
    """Inside a function: done when that is called, not when the module is loaded."""


def imports_of(tree: ast.Module, module: str, is_package: bool) -> Iterator[Import]:
    """Every module that this one names in an import, in full: `from ostler import hub` names `ostler.hub`."""
    package = module.split(".") if is_package else module.split(".")[:-1]

    def names(node: ast.AST) -> list[str]:
        if isinstance(node, ast.Import):
            return [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            return [f"{base}.{alias.name}" for alias in node.names]
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("import_module", "importlib.import_module"):
            return [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        return []

    def walk(node: ast.AST, late: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            yield from (Import(getattr(child, "lineno", 0), name, late) for name in names(child))
            yield from walk(child, late or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))

    return walk(tree, late=False)


def room_of(module: str) -> str:
    """`ostler.hub.loop` lives in hub, `ostler.config` in config, the package's own front door in __init__."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def target_of(name: str) -> str:
    """The room an import leads to. What the front door hands out (`from ostler import connect`) is the client's."""
    room = room_of(name)
    return room if room in ALLOWED else "__init__" if room.startswith("__") else "client"


def wrong_imports(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """What is wrong with a module's imports, one sentence each."""
    room = room_of(module)
    if room not in ALLOWED:
        return [f"{module}: the room {room!r} is not in the table of tests/test_layers.py"]
    found = []
    for line, name, late in imports_of(ast.parse(source), module, is_package):
        top = name.split(".")[0]
        if top == "ostler":
            target = target_of(name)
            reachable = ALLOWED[room] | (ALLOWED_LATE.get(room, set()) if late else set())
            if target not in reachable | {room, "__init__"}:
                kind = "late import" if late else "import"
                found.append(f"{module}:{line}: {room} may not import {target} ({kind} of {name})")
        elif room == "core" and top in NOT_IN_CORE:
            found.append(f"{module}:{line}: core may not import {top}")
        elif top in BESIDE_MSGSPEC.get(module, ()):
            continue
        elif room in ONLY_MSGSPEC and top != "msgspec" and top not in sys.stdlib_module_names:
            found.append(f"{module}:{line}: {room} may import the standard library and msgspec only, not {top}")
    return found


def too_long(source: str, module: str) -> list[str]:
    """The file and the functions of it that have outgrown their limits."""
    lines = source.count("\n")
    found = [f"{module}: {lines} lines; the limit is {MAX_FILE_LINES}"] if lines > MAX_FILE_LINES else []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                found.append(
                    f"{module}:{node.lineno}: {node.name} has {length} lines; the limit is {MAX_FUNCTION_LINES}"
                )
    return found


def modules() -> list[tuple[str, Path]]:
    """Each module of the package, by its dotted name."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        found.append((".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return found


def test_imports_go_down_only() -> None:
    wrong = [
        sentence
        for module, path in modules()
        for sentence in wrong_imports(path.read_text(), module, is_package=path.name == "__init__.py")
    ]
    assert not wrong, "\n" + "\n".join(wrong)


def test_no_file_and_no_function_outgrows_its_reader() -> None:
    wrong = [sentence for module, path in modules() for sentence in too_long(path.read_text(), module)]
    assert not wrong, "\n" + "\n".join(wrong)


def test_the_walk_finds_the_package_and_every_room_that_has_code() -> None:
    rooms = {room_of(module) for module, _ in modules()}
    assert {"__init__", "domain", "core"} <= rooms
    assert rooms <= ALLOWED.keys()


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("ostler.domain.job", "import yaml"),
        ("ostler.domain.job", "from ostler.core import step"),
        ("ostler.core.step", "import time"),
        ("ostler.core.step", "from os import path"),
        ("ostler.core.step", "import asyncio.events"),
        ("ostler.core.step", "def step():\n    import random"),
        ("ostler.core.step", "if TYPE_CHECKING:\n    import logging"),
        ("ostler.core.step", "import prometheus_client"),
        ("ostler.core.step", "import numpy"),
        ("ostler.core.step", "from ..ledger import base"),
        ("ostler.core", "from .. import hub"),
        ("ostler.wire.codec", "from ostler.core.events import Event"),
        ("ostler.ledger.sqlite", "import ostler.runtime.base"),
        ("ostler.runtime.process", "from ostler import store"),
        ("ostler.hub.main", "from ostler.worker import main"),
        ("ostler.hub.main", "def main():\n    import ostler.cli.main"),
        ("ostler.hub.main", "from ostler import connect"),
        ("ostler.worker.main", "import importlib\nimportlib.import_module('ostler.hub.main')"),
        ("ostler.client.fleet", "from ostler.cli import render"),
        ("ostler.client.fleet", "def local():\n    from ostler.hub import main"),
        ("ostler.cli.main", "from ostler.hub import main"),
        ("ostler.sim.world", "from ostler.hub.loop import Loop"),
        ("ostler.utils", "x = 1"),
    ],
)
def test_an_import_that_goes_up_or_sideways_is_found(module: str, source: str) -> None:
    assert len(wrong_imports(source, module, is_package=module == "ostler.core")) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("ostler.domain.job", "import re\nimport msgspec\nfrom .errors import BadInput"),
        ("ostler.core.step", "import heapq\nfrom ostler.core import plan\nfrom ostler.domain.job import JobSpec"),
        ("ostler.hub.main", "import asyncio\nfrom ostler import __version__\nfrom ostler.ledger.sqlite import Ledger"),
        ("ostler.cli.main", "import typer\nfrom ostler.client import connect"),
        ("ostler.cli.main", "def hub():\n    from ostler.hub.main import run"),
        (
            "ostler.sim.world",
            "import random\nfrom ostler.core.step import step\nfrom ostler.ledger.memory import Ledger",
        ),
    ],
)
def test_an_import_that_goes_down_is_let_through(module: str, source: str) -> None:
    assert wrong_imports(source, module) == []


def test_a_file_or_a_function_over_its_limit_is_found() -> None:
    long_function = "def f():\n" + "    x = 1\n" * MAX_FUNCTION_LINES
    assert too_long(long_function, "ostler.core.step") == ["ostler.core.step:1: f has 81 lines; the limit is 80"]
    assert too_long("x = 1\n" * (MAX_FILE_LINES + 1), "ostler.core.step") == [
        "ostler.core.step: 601 lines; the limit is 600"
    ]
    assert too_long("x = 1\n" * MAX_FILE_LINES, "ostler.core.step") == []


def test_all_json_that_the_hub_sends_has_finite_numbers() -> None:
    encoders = ("msgspec.json.encode", "msgspec.json.Encoder", "json.dumps")
    sending = [
        *(SOURCE / "hub").rglob("*.py"),
        *(SOURCE / "gateway" / "relay").rglob("*.py"),
        *(SOURCE / "wire").rglob("*.py"),
    ]
    found = {
        path.relative_to(SOURCE).as_posix() for path in sending if any(name in path.read_text() for name in encoders)
    }
    assert found == ENCODES_ITS_OWN
