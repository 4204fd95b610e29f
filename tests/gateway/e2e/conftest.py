from collections.abc import AsyncIterator

import pytest_asyncio
from tests.gateway.e2e.running_gateway import RunningGateway


@pytest_asyncio.fixture(loop_scope="module")
async def gateway(shared: RunningGateway) -> AsyncIterator[RunningGateway]:
    """The gateway that the tests of a file share, with nothing loaded."""
    yield shared
    await shared.clear()
