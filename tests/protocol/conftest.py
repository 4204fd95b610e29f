from collections.abc import AsyncIterator, Generator
from pathlib import Path

import pytest
from tests.protocol.api import Api
from tests.protocol.hub import RunningHub

from ostler.hub import feed
from ostler.hub.api import jobs, logs

_PASSED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[_PASSED] = report.passed
    return report


@pytest.fixture
async def hub(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[RunningHub]:
    """At the end of a test that passed, every worker that is still there must have heard all that was said to it."""
    # A reader that has missed its news would find them at its next look: no test may wait for that.
    monkeypatch.setattr(feed, "QUIET_S", 3600.0)
    monkeypatch.setattr(logs, "QUIET_S", 3600.0)
    monkeypatch.setattr(jobs, "MAX_WAIT_S", 3600.0)
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
