"""Similarity of texts, from their embeddings."""

import math
from collections.abc import Sequence

from baton.offline.errors import RequestFailed
from baton.offline.outputs import EmbeddingRequestOutput, ScoringOutput, ScoringRequestOutput

LABELS = ("data_1, prompt", "data_2, prompt")  # of the inputs in errors


def check_pairs(num_first: int, num_second: int) -> None:
    """Raise ValueError unless there is a first text for each second one, or one for all."""
    if num_first not in (1, num_second):
        raise ValueError(f"data_1 has {num_first} texts and data_2 {num_second}: give as many, or one as data_1")


def failure_of_input(error: RequestFailed, num_first: int) -> RequestFailed:
    """Return the error of a prompt with its index in `data_1` or `data_2`, of one with its index in their sequence."""
    is_second = error.index >= num_first
    return RequestFailed(error.index - num_first * is_second, error.reason, LABELS[is_second])


def scores(
    first: Sequence[EmbeddingRequestOutput], second: Sequence[EmbeddingRequestOutput]
) -> list[ScoringRequestOutput]:
    """Return the cosines of the angles between the embeddings of pairs; the first of one stands for all."""
    partners = first if len(first) == len(second) else [first[0]] * len(second)
    return [_score(*pair) for pair in zip(partners, second, strict=True)]


def _score(first: EmbeddingRequestOutput, second: EmbeddingRequestOutput) -> ScoringRequestOutput:
    a, b = first.outputs.embedding, second.outputs.embedding
    lengths = math.hypot(*a) * math.hypot(*b)
    cosine = sum(x * y for x, y in zip(a, b, strict=True)) / lengths if lengths else 0.0
    token_ids = [*first.prompt_token_ids, *second.prompt_token_ids]
    return ScoringRequestOutput(second.request_id, ScoringOutput(cosine), token_ids, finished=True)
