"""`make test` runs each row and each column of the matrix at least once."""

from tests.integration.matrix.features import CLUSTERS
from tests.integration.matrix.moves import MOVES


def test_each_move_is_among_the_usual_cells() -> None:
    usual = {move for spec in CLUSTERS for move in spec.usual_moves if spec.is_tested(move)}
    assert usual == {move.name for move in MOVES}


def test_each_feature_is_among_the_usual_cells() -> None:
    assert all(set(spec.usual_moves) & {move.name for move in MOVES} for spec in CLUSTERS if spec.model)
    assert all(spec.is_tested(move) for spec in CLUSTERS if spec.model for move in spec.usual_moves)
