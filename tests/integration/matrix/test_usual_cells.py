"""`make test` runs each column of the matrix at least once, and each row that does not share its code with another."""

from tests.integration.matrix.features import CLUSTERS
from tests.integration.matrix.moves import MOVES

# Rows of `make test-all` alone, and the row of `make test` that shares most of their code.
SIMILAR = {"draft model": "n-gram drafts", "int8 KV": "int4 KV", "int4 weights": "GPTQ"}


def test_each_move_is_among_the_usual_cells() -> None:
    usual = {move for spec in CLUSTERS for move in spec.usual_moves if spec.is_tested(move)}
    assert usual == {move.name for move in MOVES}


def test_each_feature_or_a_similar_one_is_among_the_usual_cells() -> None:
    usual = {spec.name for spec in CLUSTERS if spec.usual_moves}
    assert {spec.name for spec in CLUSTERS if spec.model} - usual == SIMILAR.keys()
    assert usual >= set(SIMILAR.values())
    assert all(spec.is_tested(move) for spec in CLUSTERS if spec.model for move in spec.usual_moves)
