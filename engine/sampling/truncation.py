"""Top-k and top-p truncation by a threshold per row: tokens with equal logits are kept or dropped together.

Sums are of integers, which are exact in any order, or of floats in blocks of fixed size, so that a row's threshold does
not depend on its batch.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

WEIGHT_ONE = 1 << 40  # integer weight of the most probable token
BLOCK = 128  # tokens whose weights are summed as floats
GROUP = 16  # tokens in a group when candidates are found


@dataclass(frozen=True, slots=True)
class Candidates:
    """Largest logits of each row, in descending order; [num_rows, width]."""

    logits: Tensor
    token_ids: Tensor


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Truncation thresholds of the candidates."""

    logits: Tensor  # [num_rows, 1] smallest kept logit
    complete: Tensor  # [num_rows] bool: whether all kept tokens are candidates


def relative_weights(logits: Tensor, peak: Tensor) -> Tensor:
    """Return probabilities relative to that of `peak` [num_rows, 1], as [num_rows, num_tokens] float32.

    Clamped at exp(-80): denormal numbers are slow on a CPU, and such a token is never sampled.
    """
    return (logits - peak).clamp_(min=-80).exp_()


def block_totals(weights: Tensor) -> Tensor:
    """Sum weights over blocks of tokens, [num_rows, num_blocks] float32."""
    missing = -weights.shape[1] % BLOCK
    if missing:
        weights = nn.functional.pad(weights, (0, missing))
    return weights.view(len(weights), -1, BLOCK).sum(-1)


def integer_total(weights: Tensor) -> Tensor:
    """Sum each row's weights as integers, [num_rows, 1] int64."""
    return block_totals(weights).mul_(WEIGHT_ONE).long().sum(-1, keepdim=True)


def find_candidates(logits: Tensor, width: int) -> Candidates:
    """Return the `width` largest logits of each row.

    They are in the `width` groups with the largest maxima, which leaves less to sort.
    """
    num_groups, rest = divmod(logits.shape[1], GROUP)
    if rest or num_groups < 4 * width:
        top = logits.topk(min(width, logits.shape[1]), -1)
        return Candidates(top.values, top.indices)
    grouped = logits.view(len(logits), GROUP, num_groups)  # group j: tokens j, j + num_groups, ...
    groups = grouped.amax(1).topk(width, -1, sorted=False).indices
    members = grouped.gather(2, groups[:, None, :].expand(-1, GROUP, -1)).flatten(1)
    top = members.topk(width, -1)
    token_ids = groups.gather(1, top.indices % width) + (top.indices // width) * num_groups
    return Candidates(top.values, token_ids)


def candidate_thresholds(
    candidates: Candidates, peak: Tensor, total: Tensor, top_k: Tensor, top_p: Tensor, vocab_size: int
) -> Thresholds:
    """Compute thresholds from the candidates alone.

    peak, top_k, top_p: [num_rows, 1]; top_k is off at the vocabulary's size, top_p at 1. total: [num_rows, 1] int64,
    integer weight of the whole row, used where top-k is off. As in vLLM, top-p applies to the tokens that top-k keeps.
    """
    logits = candidates.logits
    width, last = logits.shape[1], logits[:, -1:]
    has_top_k = top_k < vocab_size
    kth = logits.gather(1, top_k.clamp(max=width) - 1)
    threshold = kth.masked_fill(~has_top_k, -torch.inf)
    # If more tokens than the candidates reach top-k's threshold, their total is unknown here.
    complete = ~has_top_k | (last < threshold)
    weights = relative_weights(logits, peak).mul_(WEIGHT_ONE).long().masked_fill_(logits < threshold, 0)
    total = torch.where(has_top_k, weights.sum(-1, keepdim=True), total)
    # A token is kept while the tokens before it weigh less than top-p; the first is always kept.
    before = weights.cumsum(-1) - weights
    num_kept = (before.double() < top_p * total.double()).sum(-1, keepdim=True).clamp_(min=1)
    nucleus = logits.gather(1, num_kept - 1).masked_fill(top_p >= 1, -torch.inf)
    threshold = threshold.maximum(nucleus)
    complete = (complete & (last < threshold)) | (last == -torch.inf)
    return Thresholds(threshold, complete[:, 0] if width < vocab_size else torch.ones_like(complete[:, 0]))


def mask_truncated(logits: Tensor, peak: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Return logits that are hugely negative where top-k and top-p exclude a token; any number of tokens may be kept.

    logits: [num_rows, vocab]; other shapes as in `candidate_thresholds`.
    """
    vocab_size = logits.shape[1]
    if bool((top_k < vocab_size).any()):
        ones = torch.ones_like(logits)
        logits = _lower_below(logits, _weighed_threshold(logits, ones, top_k.double() * WEIGHT_ONE))
    weights = relative_weights(logits, peak)
    target = top_p * integer_total(weights).double()
    nucleus = _weighed_threshold(logits, weights, target).masked_fill_(top_p >= 1, -torch.inf)
    return _lower_below(logits, nucleus)


def _weighed_threshold(logits: Tensor, weights: Tensor, target: Tensor) -> Tensor:
    """Return the largest threshold such that the tokens at or above it weigh at least `target`, [num_rows, 1].

    weights: [num_rows, vocab] float32; target: [num_rows, 1] float64, in integer weight. Bisects the ordered bit
    patterns of float32, at most 32 rounds: for long rows that is several times faster than sorting.
    """
    lowest = _ordered_bits(torch.full_like(logits[:, :1], -torch.inf))
    beyond = _ordered_bits(logits.amax(-1, keepdim=True)) + 1
    reached = torch.empty_like(logits)
    for _ in range(32):
        middle = (lowest + beyond) >> 1
        torch.ge(logits, _from_ordered_bits(middle), out=reached)
        enough = integer_total(reached.mul_(weights)).double() >= target
        lowest = torch.where(enough, middle, lowest)
        beyond = torch.where(enough, beyond, middle)
    return _from_ordered_bits(lowest)


def _lower_below(logits: Tensor, threshold: Tensor) -> Tensor:
    # Arithmetic instead of a masked fill, which is slow on a CPU because its branches are unpredictable.
    lowered = torch.ge(logits, threshold, out=torch.empty_like(logits)).sub_(1)
    return lowered.mul_(torch.finfo(logits.dtype).max).add_(logits)


def _ordered_bits(values: Tensor) -> Tensor:
    """Map float32 values to int64 numbers with the same order."""
    bits = (values + 0.0).view(torch.int32).long()  # turns -0.0 into 0.0
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def _from_ordered_bits(ordered: Tensor) -> Tensor:
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).int().view(torch.float32)
