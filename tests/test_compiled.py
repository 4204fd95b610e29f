"""The core as extension modules: what is compiled, and that the tests which should run over it do."""

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
from compiled.build import SOURCE, has_structs, modules

from ostler.core import fleet, step
from ostler.core.placing import place
from ostler.core.queueing import queue

COMPILED = bool(os.environ.get("OSTLER_TEST_COMPILED"))


def test_what_decides_is_compiled_and_what_foresees_is_not() -> None:
    found = modules()
    assert {"core/step.py", "core/fleet.py", "core/index.py", "core/placing/place.py", "domain/states.py"} <= {*found}
    assert not [name for name in found if "foresight" in name or name == "core/check.py"]


def test_no_module_is_compiled_whose_classes_would_lose_what_is_said_behind_their_bases() -> None:
    assert has_structs("import msgspec\nclass One(msgspec.Struct, frozen=True): ...")
    assert has_structs("from msgspec import Struct\nclass One(Struct): ...")
    assert not has_structs("class Structure:\n    '''Of a Struct.'''")
    assert not [name for name in modules() if has_structs((SOURCE / name).read_text())]


@pytest.mark.parametrize("module", [fleet, step, place, queue])
def test_the_tests_run_over_the_core_that_they_should(module: object) -> None:
    assert str(module.__file__).endswith(".py") != COMPILED  # type: ignore[attr-defined]


@pytest.mark.skipif(not COMPILED, reason="`make test-compiled` runs these")
def test_a_wheel_with_the_compiled_core_is_of_this_platform_and_decides_with_it(tmp_path: Path) -> None:
    wheel = built(tmp_path, OSTLER_COMPILED="1")
    assert not wheel.name.endswith("-py3-none-any.whl")
    with ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "there")
    argv = [sys.executable, "-c", "from ostler.core import fleet; print(fleet.__file__)"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "there")}
    found = Path(subprocess.run(argv, env=env, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip())
    assert found.is_relative_to(tmp_path / "there") and found.suffix == ".so"


def test_any_other_wheel_is_plain_python(tmp_path: Path) -> None:
    wheel = built(tmp_path)
    assert wheel.name.endswith("-py3-none-any.whl")
    with ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".so")]


def built(folder: Path, **env: str) -> Path:
    argv = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(argv, env={**os.environ, **env}, cwd=SOURCE.parent.parent, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel
