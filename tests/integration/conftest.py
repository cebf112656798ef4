"""One real cluster with the bundled model for all tests that only send requests."""

from collections.abc import AsyncIterator

import pytest_asyncio

from benchmarks.server import served


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def cluster_url() -> AsyncIterator[str]:
    """Run `baton serve` with the bundled model and defaults, in fp32 so that batching does not change tokens."""
    async with served("", "--dtype", "float32") as url:
        yield url
