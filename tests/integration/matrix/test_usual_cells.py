"""`make test` runs each row and each move of the matrix at least once."""

from tests.integration.matrix.features import CLUSTERS
from tests.integration.matrix.moves import MOVES


def test_each_row_and_each_move_is_among_the_usual_cells() -> None:
    assert all(spec.usual_moves for spec in CLUSTERS if spec.model)
    usual = {move for spec in CLUSTERS for move in spec.usual_moves if spec.is_tested(move)}
    assert usual == {move.name for move in MOVES}
