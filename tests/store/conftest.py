from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.store.s3_server import Server, serving

from ostler.store import bucket, s3
from ostler.store.bucket import Client
from ostler.store.shelves import Shelves

KINDS = ["folder", "comparing", "plain"]
"""A folder, and buckets: of a store that compares and computes hashes, and of one that does neither."""
PART = 512 * 1024


@pytest.fixture(scope="session")
def started() -> Iterator[Server]:
    with serving() as server:
        yield server


@pytest.fixture
def server(started: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(bucket, "PART_BYTES", PART)
    monkeypatch.setattr(s3, "PART_BYTES", PART)
    started.away, started.compares, started.repeats, started.computes = False, True, False, True
    yield started
    started.away = False


@pytest.fixture
def client(server: Server, tmp_path: Path) -> Client:
    return Client(server.bucket(tmp_path.name.replace("_", "-").lower()[:50].strip("-") + "-b"))


@pytest.fixture(params=KINDS)
def shelves(request: pytest.FixtureRequest, tmp_path: Path) -> Shelves:
    if request.param == "folder":
        return Shelves(tmp_path / "store")
    server: Server = request.getfixturevalue("server")
    server.compares, server.computes = (request.param == "comparing",) * 2
    return Shelves(tmp_path / "store", request.getfixturevalue("client").bucket)
