"""Compile the deciding core into build/compiled: the same package, with the hot modules of core/ as extension modules.

    python compiled/build.py            or: make compiled
    PYTHONPATH=build/compiled ostler hub

Whoever does not have that folder on the path runs the same code as plain Python. Needs a C compiler.
"""

import ast
import os
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "ostler"
TARGET = ROOT / "build" / "compiled"
BESIDE_CORE = ["domain/states.py"]
PLAIN = ["core/foresight", "core/check.py", "core/manifest.py", "core/pruning.py"]
"""They run seldom, and the check of everything is better off not being compiled by what it checks."""
NAME = "ostler_core"


def has_structs(source: str) -> bool:
    """Of these mypyc loses what their class says behind its bases, such as `frozen`: such modules stay plain."""
    classes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef))
    return any("Struct" in ast.unparse(base) for node in classes for base in node.bases)


def modules() -> list[str]:
    """What is compiled, relative to the package."""
    found = [SOURCE / name for name in BESIDE_CORE]
    for path in sorted((SOURCE / "core").rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if path.name != "__init__.py" and not name.startswith(tuple(PLAIN)) and not has_structs(path.read_text()):
            found.append(path)
    return [path.relative_to(SOURCE).as_posix() for path in found]


def build(level: str = "1") -> None:
    """More than the first level of optimisation takes twice as long and makes nothing faster."""
    from mypyc.build import mypycify
    from setuptools import setup

    shutil.rmtree(TARGET, ignore_errors=True)
    shutil.copytree(SOURCE, TARGET / "ostler", ignore=shutil.ignore_patterns("__pycache__"))
    before = os.getcwd()
    os.chdir(TARGET)
    paths = [f"ostler/{name}" for name in modules()]
    # What is not compiled has been looked at by whoever checks the types of everything.
    options = ["--config-file", str(ROOT / "pyproject.toml"), "--follow-imports", "silent"]
    extensions = mypycify(
        [*options, *paths], opt_level=level, debug_level="0", group_name=NAME, target_dir=str(TARGET / "c")
    )
    made = ["--quiet", "build_ext", "--inplace", "--build-temp", str(TARGET / "c")]
    setup(name=NAME, packages=[], ext_modules=extensions, script_args=made)
    os.chdir(before)
    for left in ("c", "build", ".mypy_cache"):
        shutil.rmtree(TARGET / left, ignore_errors=True)
    print(f"compiled: {len(paths)} modules, in {TARGET.relative_to(ROOT)}")


if __name__ == "__main__":
    build(*sys.argv[1:])
