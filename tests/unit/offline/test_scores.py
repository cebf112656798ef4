"""Similarity of texts from their embeddings."""

from collections.abc import Sequence

import pytest

from baton.offline.errors import RequestFailed
from baton.offline.outputs import EmbeddingOutput, EmbeddingRequestOutput
from baton.offline.scores import check_pairs, failure_of_input, scores


def embedded(*vectors: Sequence[float]) -> list[EmbeddingRequestOutput]:
    return [
        EmbeddingRequestOutput(str(number), EmbeddingOutput([*vector]), [number], finished=True)
        for number, vector in enumerate(vectors)
    ]


def test_scores_are_cosines_of_pairs() -> None:
    found = scores(embedded((3, 4), (1, 0)), embedded((6, 8), (0, 2)))
    assert [each.outputs.score for each in found] == pytest.approx([1, 0])
    assert [each.prompt_token_ids for each in found] == [[0, 0], [1, 1]]


def test_one_text_is_compared_with_all() -> None:
    found = scores(embedded((1, 0)), embedded((5, 0), (-2, 0), (0, 0)))
    assert [each.outputs.score for each in found] == [1, -1, 0]
    assert [each.request_id for each in found] == ["0", "1", "2"]


def test_numbers_of_texts_must_agree() -> None:
    for num_first, num_second in ((1, 1), (1, 3), (3, 3), (1, 0), (0, 0)):
        check_pairs(num_first, num_second)
    with pytest.raises(ValueError, match="data_1 has 2 texts and data_2 3"):
        check_pairs(2, 3)


def test_a_failure_names_the_list_and_the_index_there() -> None:
    found = [failure_of_input(RequestFailed(index, "lost"), 2) for index in range(4)]
    assert [(str(each), each.index) for each in found] == [
        ("data_1, prompt 0 failed: lost", 0),
        ("data_1, prompt 1 failed: lost", 1),
        ("data_2, prompt 0 failed: lost", 0),
        ("data_2, prompt 1 failed: lost", 1),
    ]
