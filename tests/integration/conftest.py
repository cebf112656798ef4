"""The bundled model on a real cluster, once for all tests that only talk to it."""

from collections.abc import AsyncIterator

import pytest_asyncio

from benchmarks.server import served


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def cluster_url() -> AsyncIterator[str]:
    """`baton serve` of the bundled model with its defaults, in fp32 so that batches do not change tokens."""
    async with served("", "--dtype", "float32") as url:
        yield url
