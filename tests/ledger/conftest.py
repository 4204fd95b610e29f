"""One ledger in a file."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ostler.ledger.sqlite import SqliteLedger


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ostler.db"


@pytest.fixture
def ledger(path: Path) -> Iterator[SqliteLedger]:
    made = SqliteLedger(path)
    yield made
    made.close()
