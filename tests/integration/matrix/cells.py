"""The cells of the matrix as parameters of tests, and the test of one."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from tests.integration.matrix.cluster import Cluster
from tests.integration.matrix.feature import ClusterSpec, Status
from tests.integration.matrix.moves import Move


def cells_to_run(specs: Sequence[ClusterSpec], moves: Sequence[Move]) -> list[Any]:
    """Return the cells that are tested; `make test` runs a few."""
    return [_cell(spec, move) for spec in specs if spec.model for move in moves if spec.is_tested(move.name)]


async def check_tokens(cluster: Cluster, move: Move) -> None:
    """Check that every request has the output of one undisturbed worker."""
    expected = {each.feature.name: each for each in await cluster.reference()}
    exchanges = await move.run(cluster)
    assert {each.feature.name for each in exchanges} == {*expected}
    different = {each.feature.name: each.difference(expected[each.feature.name]) for each in exchanges}
    assert not any(different.values()), {name: text for name, text in different.items() if text}


def refused_cells(specs: Sequence[ClusterSpec], moves: Sequence[Move]) -> list[Any]:
    """Return the cells that workers refuse when they start."""
    return [_cell(spec, move) for spec, move in _cells(specs, moves, Status.REFUSED)]


def _cells(specs: Sequence[ClusterSpec], moves: Sequence[Move], status: Status) -> Iterator[tuple[ClusterSpec, Move]]:
    for spec in specs:
        for move in moves:
            found = spec.untested.get(move.name)
            if found is not None and found.status is status:
                yield spec, move


def _cell(spec: ClusterSpec, move: Move) -> Any:
    marks = [] if move.name in spec.usual_moves else [pytest.mark.slow]
    if spec.needs_vnni:
        marks.append(pytest.mark.skipif(not torch.cpu._is_vnni_supported(), reason="products in int8 need VNNI"))
    return pytest.param(spec, move, id=f"{spec.name}-{move.name}".replace(" ", "_"), marks=marks)
