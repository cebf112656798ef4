"""Workers refuse the moves that the matrix says they refuse, and name the option."""

from pathlib import Path

import pytest

from tests.integration.matrix.cells import refused_cells
from tests.integration.matrix.cluster import running_cluster
from tests.integration.matrix.feature import ClusterSpec
from tests.integration.matrix.features import CLUSTERS
from tests.integration.matrix.moves import MOVES, Move


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "move"), refused_cells(CLUSTERS, MOVES))
async def test_a_refused_move_is_refused_at_the_start(spec: ClusterSpec, move: Move, tmp_path: Path) -> None:
    async with running_cluster(spec, tmp_path) as cluster:
        with pytest.raises(AssertionError, match=spec.untested[move.name].evidence):
            async with cluster.fresh("decode", *move.flags):
                pass
