"""Each feature has the tokens of one undisturbed worker, however its requests move."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.fork_server import ForkServer, Launcher
from tests.integration.matrix.cells import cells_to_run, refused_cells
from tests.integration.matrix.cluster import Cluster, running_cluster
from tests.integration.matrix.feature import ClusterSpec
from tests.integration.matrix.features import CLUSTERS
from tests.integration.matrix.moves import MOVES, Move

pytestmark = pytest.mark.asyncio(loop_scope="module")


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


@pytest.mark.parametrize(("cluster", "move"), cells_to_run(CLUSTERS, MOVES), indirect=["cluster"])
async def test_tokens_are_those_of_one_worker(cluster: Cluster, move: Move) -> None:
    expected = {each.feature.name: each for each in await cluster.reference()}
    exchanges = await move.run(cluster)
    assert {each.feature.name for each in exchanges} == {*expected}
    different = {each.feature.name: each.difference(expected[each.feature.name]) for each in exchanges}
    assert not any(different.values()), {name: text for name, text in different.items() if text}


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "move"), refused_cells(CLUSTERS, MOVES))
async def test_a_refused_move_is_refused_at_the_start(spec: ClusterSpec, move: Move, tmp_path: Path) -> None:
    async with running_cluster(spec, tmp_path) as cluster:
        with pytest.raises(AssertionError, match=spec.untested[move.name].evidence):
            async with cluster.fresh("decode", *move.flags):
                pass
