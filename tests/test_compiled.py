"""The core as extension modules: what is compiled, and that the tests which should run over it do."""

import os

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
