"""Random sampling by Gumbel-max, independently for each row: nothing here depends on the rest of a batch."""

from dataclasses import dataclass

import torch
from torch import Tensor

from baton.engine.sampling.noise import gumbel_noise
from baton.engine.sampling.truncation import (
    BLOCK,
    block_totals,
    candidate_thresholds,
    find_candidates,
    integer_total,
    mask_truncated,
    relative_weights,
)

BLOCK_COUNTER = 1 << 32  # noise counter of the first block, above all token ids
NUM_CANDIDATES = 64  # enough for most rows with top-k or top-p


@dataclass(frozen=True, slots=True)
class RandomRows:
    """Rows to sample at random; all tensors have `num_rows` rows."""

    logits: Tensor  # [num_rows, vocab] divided by the temperature, -inf where min-p excludes a token
    keys: Tensor  # [num_rows] int64 noise keys
    peak: Tensor  # [num_rows, 1] the largest logit, finite
    top_k: Tensor  # [num_rows, 1] int64; the vocabulary's size if off
    top_p: Tensor  # [num_rows, 1] float64; 1 if off


def draw_whole(logits: Tensor, peak: Tensor, keys: Tensor) -> Tensor:
    """Sample a token per row from the whole vocabulary, [num_rows] int64; parameters as in `RandomRows`.

    Samples first a block by its total probability, then a token in it, both by Gumbel-max. The distribution is the same
    as that of Gumbel-max over all tokens, but only a few hundred noise values are needed.
    """
    vocab_size = logits.shape[1]
    masses = block_totals(relative_weights(logits, peak))
    block_ids = torch.arange(masses.shape[1], device=masses.device)
    noise = gumbel_noise(keys, block_ids + BLOCK_COUNTER)
    block = (masses.double().log_() + noise).argmax(-1, keepdim=True)
    token_ids = block * BLOCK + torch.arange(BLOCK, device=block.device)
    inside = token_ids < vocab_size
    token_ids = token_ids.clamp_(max=vocab_size - 1)
    return _gumbel_max(keys, token_ids, logits.gather(1, token_ids), inside)


def draw_truncated(rows: RandomRows) -> Tensor:
    """Sample a token per row from those that its top-k and top-p keep, [num_rows] int64."""
    vocab_size = rows.logits.shape[1]
    candidates = find_candidates(rows.logits, NUM_CANDIDATES)
    total = torch.zeros_like(rows.top_k)
    unlimited = (rows.top_k[:, 0] == vocab_size).nonzero()[:, 0]
    if len(unlimited):
        total[unlimited] = integer_total(relative_weights(rows.logits[unlimited], rows.peak[unlimited]))
    found = candidate_thresholds(candidates, rows.peak, total, rows.top_k, rows.top_p, vocab_size)
    kept = candidates.logits >= found.logits
    token_ids = _gumbel_max(rows.keys, candidates.token_ids, candidates.logits, kept)
    rest = (~found.complete).nonzero()[:, 0]
    if len(rest):
        peak, keys = rows.peak[rest], rows.keys[rest]
        masked = mask_truncated(rows.logits[rest], peak, rows.top_k[rest], rows.top_p[rest])
        token_ids[rest] = draw_whole(masked, peak, keys)
    return token_ids


def _gumbel_max(keys: Tensor, token_ids: Tensor, logits: Tensor, kept: Tensor) -> Tensor:
    scores = (logits.double() + gumbel_noise(keys, token_ids)).masked_fill_(~kept, -torch.inf)
    return token_ids.gather(1, scores.argmax(-1, keepdim=True))[:, 0]
