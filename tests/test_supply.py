"""What the code may do with bytes of others, and what it is built from."""

import ast
import json
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "ostler"
UNPICKLING = {"pickle", "cloudpickle", "marshal", "shelve", "dill", "joblib"}
TASKS_OWN = ("task", "client", "joblib.py")
"""These run in the user's own process. A hub and a worker carry what is pickled, and never open it."""
UNPACKING = {"zipfile", "gzip", "bz2", "lzma"}
STATIC = SOURCE / "dashboard" / "static"
IMPORTED = re.compile(r"""(?:from|import)\s*\(?\s*["']((?:@[\w.-]+/)?[\w-][\w.-]*)""")


class Module:
    def __init__(self, path: Path) -> None:
        self.name = path.relative_to(SOURCE).as_posix()
        nodes = list(ast.walk(ast.parse(path.read_text())))
        self.calls = [(_called(node), node) for node in nodes if isinstance(node, ast.Call)]
        plain = [name.name for node in nodes if isinstance(node, ast.Import) for name in node.names]
        plain += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level]
        self.imported = {name.partition(".")[0] for name in plain}


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


@cache
def modules() -> list[Module]:
    return [Module(path) for path in sorted(SOURCE.rglob("*.py"))]


def test_nothing_is_unpickled_outside_a_tasks_own_process_and_the_users() -> None:
    found = [one.name for one in modules() if one.imported & UNPICKLING and not one.name.startswith(TASKS_OWN)]
    assert found == []


def test_archives_are_opened_by_our_own_reader_alone() -> None:
    """`pull.py` packs with tarfile; it never opens an archive with it."""
    for one in modules():
        assert not one.imported & UNPACKING, one.name
        if "tarfile" in one.imported:
            assert one.name == "pull.py"
            assert {called for called, _ in one.calls}.isdisjoint(
                {"extract", "extractall", "extractfile", "getmembers"}
            )
            opens = [node for called, node in one.calls if called == "TarFile" or _is_tarfile_open(called, node)]
            assert all("r" not in ast.unparse(node).partition("mode=")[2][:3] for node in opens)


def _is_tarfile_open(called: str, node: ast.Call) -> bool:
    return called == "open" and ast.unparse(node.func) == "tarfile.open"


def test_no_command_of_ours_goes_through_a_shell() -> None:
    for one in modules():
        for called, node in one.calls:
            assert called not in ("popen", "getoutput", "getstatusoutput", "create_subprocess_shell"), one.name
            assert called != "system" or not ast.unparse(node.func).startswith("os."), one.name
            shells = [word for word in node.keywords if word.arg == "shell"]
            assert not shells, f"{one.name}:{node.lineno}"


def test_nothing_is_made_into_code_but_what_the_standard_library_makes() -> None:
    for one in modules():
        for called, node in one.calls:
            is_plain = isinstance(node.func, ast.Name)
            assert not (is_plain and called in ("eval", "exec", "compile", "__import__")), f"{one.name}:{node.lineno}"
            assert not (called == "load" and ast.unparse(node.func).startswith("yaml.")), f"{one.name}:{node.lineno}"


def test_every_locked_package_has_its_hash_and_its_version() -> None:
    text = (ROOT / "requirements.lock").read_text()
    packages = re.split(r"\n(?=[a-z])", "\n" + text)[1:]
    assert len(packages) > 20
    for package in packages:
        assert re.match(r"[a-z0-9][a-z0-9._-]*(\[[a-z,]+\])?==\S+", package), package[:60]
        assert "--hash=sha256:" in package, package[:60]
    assert "--hash" in text and "://" not in re.sub(r"#.*", "", text), "no package comes from an address of its own"


@pytest.mark.parametrize("word", ["urlopen", "urlretrieve", "pip", "ensurepip", "hf_hub_download"])
def test_nothing_is_downloaded_at_run_time_but_from_the_hub(word: str) -> None:
    """`pull.py` is the client for bare Python: it asks the hub, by the standard library."""
    for one in modules():
        if one.name != "pull.py":
            assert word not in {called for called, _ in one.calls} | one.imported, one.name


def _bundled() -> dict[str, str]:
    """The version of every package that the dashboard's sources import, and of all that these depend on."""
    locked = json.loads((ROOT / "dashboard" / "package-lock.json").read_text())["packages"]
    sources = (ROOT / "dashboard" / "src").rglob("*.ts*")
    waiting = {name for path in sources for name in IMPORTED.findall(path.read_text())}
    found: dict[str, str] = {}
    while waiting:
        package = locked[f"node_modules/{(name := waiting.pop())}"]
        found[name] = package["version"]
        waiting |= set(package.get("dependencies", {})) - set(found)
    return found


def test_every_package_in_the_built_dashboard_comes_with_its_licence() -> None:
    if not (STATIC / "index.html").exists():
        pytest.skip("the dashboard is not built: make dashboard (Node 18 or newer)")
    head, *parts = re.split(r"\n-{80}\n\n", (STATIC / "assets" / "licences.txt").read_text())
    titles = [re.match(r"(\S+) (\S+) \([\w.-]+\)\n\n", part) for part in parts]
    assert {title[1]: title[2] for title in titles if title} == _bundled()
    assert all(title for title in titles) and all("Copyright (c)" in part for part in parts)
    scripts = list(STATIC.rglob("*.js"))
    assert scripts and all("/assets/licences.txt" in path.read_text()[:200] for path in scripts)
    assert "Apache License 2.0" in head
