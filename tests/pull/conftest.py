from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.pull.bare import PullWorker, Start
from tests.pull.scripted_hub import ScriptedPullHub


@pytest.fixture
def hub() -> Iterator[ScriptedPullHub]:
    with ScriptedPullHub() as running:
        yield running


@pytest.fixture
def start(hub: ScriptedPullHub, tmp_path: Path) -> Iterator[Start]:
    """Start a worker with these options and variables."""
    started: list[PullWorker] = []

    def begin(*options: str, **more: str) -> PullWorker:
        started.append(PullWorker(tmp_path, more.pop("hub", hub.url), *options, **more))
        return started[-1]

    yield begin
    for worker in started:
        worker.close()
