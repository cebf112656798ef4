import numpy as np
import pytest
import torch

from baton.engine.sampling.truncation import (
    candidate_thresholds,
    find_candidates,
    integer_total,
    mask_truncated,
    relative_weights,
)
from tests.marks import each_value
from tests.unit.engine.sampler_reference import make_request, survivors


def random_logits(num_rows: int, vocab_size: int, ties: bool) -> torch.Tensor:
    logits = torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(3)) * 2
    return (logits * 4).round() / 4 if ties else logits


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("vocab_size", [10, 64, 1000, 4096, 4100, 16384])
def test_candidates_are_the_largest_logits(vocab_size: int, ties: bool) -> None:
    logits = random_logits(7, vocab_size, ties)
    for width in (1, 8, 64):
        found = find_candidates(logits, width)
        expected = logits.sort(-1, descending=True).values[:, :width]
        assert torch.equal(found.logits, expected)
        assert torch.equal(logits.gather(1, found.token_ids), expected)
        assert all(len(set(row)) == len(row) for row in found.token_ids.tolist())


@each_value
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("vocab_size", [64, 700, 4096])
@pytest.mark.parametrize("top_k", [0, 1, 10, 63, 64, 200])
@pytest.mark.parametrize("top_p", [1.0, 0.99, 0.5, 1e-6])
def test_thresholds_keep_the_same_tokens_as_sorting(vocab_size: int, ties: bool, top_k: int, top_p: float) -> None:
    logits = random_logits(6, vocab_size, ties)
    params = make_request(top_k=top_k, top_p=top_p).sampling
    kept, num_after_top_k = zip(*(survivors(row, params) for row in logits.numpy()), strict=True)
    expected = torch.from_numpy(np.stack(kept))
    peak = logits.amax(-1, keepdim=True)
    counts = torch.full((6, 1), min(top_k or vocab_size, vocab_size))
    shares = torch.full((6, 1), top_p, dtype=torch.float64)
    masked = mask_truncated(logits, peak, counts, shares)
    assert torch.equal(masked > -1e30, expected)
    assert torch.equal(masked[expected], logits[expected])
    # With few candidates the result is the same, or is known to be incomplete.
    total = integer_total(relative_weights(logits, peak))
    found = candidate_thresholds(find_candidates(logits, 64), peak, total, counts, shares, vocab_size)
    exact = ((logits >= found.logits) == expected).all(-1)
    assert bool(exact[found.complete].all())
    if vocab_size > 64:
        num_considered = torch.tensor(num_after_top_k) if top_k else expected.sum(-1)
        assert torch.equal(found.complete, num_considered < 64)


def test_top_p_keeps_the_token_that_crosses_it() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    peak = logits.amax(-1, keepdim=True)
    for top_p, num_kept in ((0.49, 1), (0.51, 2), (0.79, 2), (0.81, 3), (0.96, 4)):
        masked = mask_truncated(logits, peak, torch.tensor([[4]]), torch.tensor([[top_p]], dtype=torch.float64))
        assert (masked > -1e30).tolist() == [[token < num_kept for token in range(4)]]


def test_minus_infinity_is_never_kept_in_place_of_a_token() -> None:
    logits = torch.full((1, 300), -torch.inf)
    logits[0, [3, 290]] = torch.tensor([1.0, 0.0])
    peak = logits.amax(-1, keepdim=True)
    for top_k, top_p in ((1, 1.0), (5, 1.0), (300, 0.7), (300, 0.99), (100, 0.99)):
        masked = mask_truncated(logits, peak, torch.tensor([[top_k]]), torch.tensor([[top_p]], dtype=torch.float64))
        kept = (masked > -1e30)[0].nonzero()[:, 0].tolist()
        assert kept == ([3] if top_k == 1 or top_p == 0.7 else [3, 290])
