"""One supervisor, one worker, one signpost."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.runtime.tasks import Ends, Signpost

from ostler.runtime.process import ProcessRuntime


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[ProcessRuntime]:
    runtime = ProcessRuntime(tmp_path / "state", idle_exit_s=5.0)
    assert await runtime.open() == []
    yield runtime
    await runtime.close(stop_tasks=True)


@pytest.fixture
async def ends(runtime: ProcessRuntime) -> Ends:
    return Ends(runtime)


@pytest.fixture
def post(tmp_path: Path) -> Signpost:
    return Signpost(tmp_path / "post")
