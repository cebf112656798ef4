"""Which tokens top-k and top-p leave: a threshold for each row, since tokens of equal logits stay or go together.

Sums are of integers, which no order of summation changes, or of floats in blocks of fixed size, so that a row's
threshold does not depend on its batch.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

WEIGHT_ONE = 1 << 40  # integer weight of the most probable token
BLOCK = 128  # tokens whose weights are summed as floats
GROUP = 16  # tokens in a group when candidates are found


@dataclass(frozen=True, slots=True)
class Candidates:
    """The largest logits of each row, in descending order; [num_rows, width]."""

    logits: Tensor
    token_ids: Tensor


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What stays among candidates."""

    logits: Tensor  # [num_rows, 1] the smallest that stay
    complete: Tensor  # [num_rows] bool: whether all that stay are candidates


def relative_weights(logits: Tensor, peak: Tensor) -> Tensor:
    """[num_rows, num_tokens] float32: probabilities relative to that of `peak`, [num_rows, 1].

    Nothing is below exp(-80): a CPU takes long over numbers next to zero, and such a token is never drawn.
    """
    return (logits - peak).clamp_(min=-80).exp_()


def block_totals(weights: Tensor) -> Tensor:
    """[num_rows, num_blocks] float32: sums over blocks of tokens."""
    missing = -weights.shape[1] % BLOCK
    if missing:
        weights = nn.functional.pad(weights, (0, missing))
    return weights.view(len(weights), -1, BLOCK).sum(-1)


def integer_total(weights: Tensor) -> Tensor:
    """[num_rows, 1] int64: sums over rows."""
    return block_totals(weights).mul_(WEIGHT_ONE).long().sum(-1, keepdim=True)


def find_candidates(logits: Tensor, width: int) -> Candidates:
    """The `width` largest logits of each row.

    They lie in the `width` groups whose own largest logits are the largest; that leaves less to sort.
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
    """Thresholds from candidates alone.

    peak, top_k, top_p: [num_rows, 1], off at the vocabulary's size and 1; total: [num_rows, 1] int64 integer weight of
    the whole row, read where top-k is off. As in vLLM, top-p looks at what top-k leaves.
    """
    logits = candidates.logits
    width, last = logits.shape[1], logits[:, -1:]
    has_top_k = top_k < vocab_size
    kth = logits.gather(1, top_k.clamp(max=width) - 1)
    threshold = kth.masked_fill(~has_top_k, -torch.inf)
    # If more tokens than candidates reach top-k's threshold, their total is not known here.
    complete = ~has_top_k | (last < threshold)
    weights = relative_weights(logits, peak).mul_(WEIGHT_ONE).long().masked_fill_(logits < threshold, 0)
    total = torch.where(has_top_k, weights.sum(-1, keepdim=True), total)
    # A token stays while those before it weigh less than top-p; the first always does.
    before = weights.cumsum(-1) - weights
    num_kept = (before.double() < top_p * total.double()).sum(-1, keepdim=True).clamp_(min=1)
    nucleus = logits.gather(1, num_kept - 1).masked_fill(top_p >= 1, -torch.inf)
    threshold = threshold.maximum(nucleus)
    complete = (complete & (last < threshold)) | (last == -torch.inf)
    return Thresholds(threshold, complete[:, 0] if width < vocab_size else torch.ones_like(complete[:, 0]))


def mask_truncated(logits: Tensor, peak: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Logits that are hugely negative where top-k and top-p rule a token out; any number of tokens may stay.

    logits: [num_rows, vocab]; other shapes as above.
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
    """[num_rows, 1] the largest threshold that tokens of a total of at least `target` reach.

    weights: [num_rows, vocab] float32; target: [num_rows, 1] float64 of integer weight. Bisection over the ordered
    bit patterns of float32, 32 rounds at most: for long rows that is several times faster than sorting them.
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
    # Arithmetic instead of a masked fill, which is slow on a CPU where it cannot be foreseen what is masked.
    lowered = torch.ge(logits, threshold, out=torch.empty_like(logits)).sub_(1)
    return lowered.mul_(torch.finfo(logits.dtype).max).add_(logits)


def _ordered_bits(values: Tensor) -> Tensor:
    """int64 numbers in the order of the float32 `values`."""
    bits = (values + 0.0).view(torch.int32).long()  # no negative zero
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def _from_ordered_bits(ordered: Tensor) -> Tensor:
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).int().view(torch.float32)
