from collections.abc import AsyncIterator

import pytest_asyncio
from tests.gateway.e2e.rig import Rig


@pytest_asyncio.fixture(loop_scope="module")
async def yard(shared: Rig) -> AsyncIterator[Rig]:
    """The rig that the tests of a file share, with nothing loaded."""
    yield shared
    await shared.clear()
