"""Options of requests: the tokens of one undisturbed worker, however requests move."""

import pytest

from tests.integration.matrix.cells import cells_to_run, check_tokens
from tests.integration.matrix.cluster import Cluster
from tests.integration.matrix.features import REQUESTS
from tests.integration.matrix.moves import MOVES, Move


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("cluster", "move"), cells_to_run(REQUESTS, MOVES), indirect=["cluster"])
async def test_tokens_are_those_of_one_worker(cluster: Cluster, move: Move) -> None:
    await check_tokens(cluster, move)
