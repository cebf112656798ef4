"""Workers of the matrix."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.fork_server import ForkServer, Launcher
from tests.integration.matrix.cluster import Cluster, running_cluster
from tests.integration.matrix.feature import ClusterSpec


@pytest.fixture(scope="module", autouse=True)
def always_forked(fork_server: ForkServer) -> Iterator[None]:
    """Fork the workers even with `--spawn`: the matrix is about tokens, not about starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "create_subprocess_exec", Launcher(lambda: fork_server.path, is_nested=False))
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """Run the workers of a spec."""
    spec: ClusterSpec = request.param
    async with running_cluster(spec, tmp_path_factory.mktemp("matrix")) as running:
        yield running
