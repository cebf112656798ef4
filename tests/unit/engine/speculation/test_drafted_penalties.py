"""Penalties of rows behind drafted tokens."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from baton.engine.request import Request, RequestId
from baton.engine.sampling.logits import LogitsEditor
from baton.engine.sampling.params import SamplingParams

VOCAB_SIZE = 20


class CountedSlices(list[int]):
    """Tokens, and how often some of them were taken."""

    count = 0

    def __getitem__(self, place: Any) -> Any:
        self.count += isinstance(place, slice)
        return super().__getitem__(place)


def make_request(sampling: SamplingParams, token_ids: Sequence[int]) -> Request:
    return Request(RequestId("a"), CountedSlices(token_ids), 2, sampling)


@pytest.mark.parametrize(
    "sampling",
    [SamplingParams(repetition_penalty=1.5), SamplingParams(presence_penalty=0.5, frequency_penalty=0.25)],
    ids=["repetition", "output"],
)
def test_each_row_counts_its_own_drafts_and_a_long_context_is_read_once(sampling: SamplingParams) -> None:
    drafts, known = [7, 9, 7], [1, 2, 3, 7]
    logits = torch.randn(4, VOCAB_SIZE)
    request = make_request(sampling, known)
    found = LogitsEditor(frozenset()).edit(logits, [request] * 4, None, {n: drafts[:n] for n in (1, 2, 3)})
    alone = [make_request(sampling, known + drafts[:count]) for count in range(4)]
    assert torch.equal(found, LogitsEditor(frozenset()).edit(logits, alone))
    assert isinstance(request.token_ids, CountedSlices)
    assert request.token_ids.count == 1
