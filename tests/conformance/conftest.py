"""One ledger after the other."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conformance.ledgers import LEDGERS

from ostler.ledger.base import Ledger


@pytest.fixture(params=LEDGERS)
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    made = LEDGERS[request.param](tmp_path)
    yield made
    made.close()


@pytest.fixture(params=[name for name in LEDGERS if name != "memory"])
def durable_ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    """One durable ledger after the other: the plain dicts of the memory ledger refuse no value."""
    made = LEDGERS[request.param](tmp_path)
    yield made
    made.close()
