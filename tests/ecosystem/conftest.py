"""One embedded fleet for all who come with another library's habits."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import ostler
from ostler.client import Fleet


@pytest.fixture(scope="session")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="session")
def fleet(state: Path) -> Iterator[Fleet]:
    with ostler.local(slots=4, state_dir=state) as fleet:
        yield fleet
