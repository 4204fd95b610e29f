from collections.abc import AsyncIterator, Generator
from pathlib import Path

import pytest
from tests.protocol.api import Api
from tests.protocol.hub import RunningHub

_PASSED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[_PASSED] = report.passed
    return report


@pytest.fixture
async def hub(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[RunningHub]:
    """At the end of a test that passed, every worker that is still there must have heard all that was said to it."""
    running = RunningHub(tmp_path)
    await running.start()
    try:
        yield running
        if request.node.stash.get(_PASSED, False):
            for worker in running.workers:
                await worker.leave()
    finally:
        for worker in running.workers:
            await worker.drop()
        await running.stop()


@pytest.fixture
def api(hub: RunningHub) -> Api:
    """The operator."""
    return hub.api
