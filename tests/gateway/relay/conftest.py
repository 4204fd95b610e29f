import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tests.gateway.relay.running_relay import RunningRelay

from ostler.gateway.relay.limits import Limits

TEST_S = 60.0


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that the relay has in its own process."""
    return {"uvloop": uvloop.new_event_loop}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A signal does not get through to a test that waits in this loop: each has its own end."""
    for item in items:
        if isinstance(item, pytest.Function) and Path(__file__).parent in item.path.parents:
            item.obj = _bounded(item.obj)


def _bounded(test: Any) -> Any:
    if not inspect.iscoroutinefunction(test):
        return test

    @functools.wraps(test)
    async def bounded(*args: Any, **more: Any) -> None:
        async with asyncio.timeout(TEST_S):
            await test(*args, **more)

    return bounded


@pytest.fixture
async def relay(tmp_path: Path) -> AsyncIterator[RunningRelay]:
    """A relay that has its configuration, and knows of no instance yet."""
    async with RunningRelay.open(tmp_path, Limits(linger_s=0.1, look_every_s=0.05)) as relay:
        yield relay
