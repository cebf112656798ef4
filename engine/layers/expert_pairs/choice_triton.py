"""The Triton kernels of `choice`; importing it requires Triton."""

import torch
import triton
import triton.language as tl
from torch import Tensor

COLUMNS = 128  # of fp32 weights: 16 bytes for each thread of a warp
UNROLL = tl.constexpr(8)  # reads of a thread at once
LEAST = tl.constexpr(-(2**63))


@triton.jit  # type: ignore[untyped-decorator]
def _logits(  # type: ignore[no-untyped-def]
    x, weight, result, x_stride,
    NUM_EXPERTS: tl.constexpr, HIDDEN: tl.constexpr, COLUMNS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    WHOLE: tl.constexpr = HIDDEN // COLUMNS * COLUMNS  # noqa: N806
    token, expert, column = tl.program_id(0), tl.program_id(1), tl.arange(0, COLUMNS)
    source, row = x + token * x_stride + column, weight + expert * HIDDEN + column
    total = tl.zeros((COLUMNS,), tl.float32)
    for start in tl.range(0, WHOLE, COLUMNS, loop_unroll_factor=UNROLL):
        total += tl.load(row + start) * tl.load(source + start).to(tl.float32)
    if WHOLE < HIDDEN:
        mask = WHOLE + column < HIDDEN
        inputs = tl.load(source + WHOLE, mask=mask, other=0.0).to(tl.float32)
        total += tl.load(row + WHOLE, mask=mask, other=0.0) * inputs
    tl.store(result + token * NUM_EXPERTS + expert, tl.sum(total))


@triton.jit  # type: ignore[untyped-decorator]
def _choose(  # type: ignore[no-untyped-def]
    logits, weights, chosen, factor,
    NUM_EXPERTS: tl.constexpr, NUM_CHOSEN: tl.constexpr, LANES: tl.constexpr, IS_NORMED: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Find the largest logits one by one, ties by number; NaN counts as the smallest, so all experts differ."""
    token, expert = tl.program_id(0).to(tl.int64), tl.arange(0, LANES)
    is_expert = expert < NUM_EXPERTS
    logit = tl.load(logits + token * NUM_EXPERTS + expert, mask=is_expert, other=float("-inf"))
    number = tl.where(logit == logit, logit, float("-inf"))
    bits = number.to(tl.int32, bitcast=True)
    order = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # in the order of the numbers, as integers
    key = tl.where(is_expert, order.to(tl.int64) * 4294967296 + (LANES - 1 - expert), LEAST)
    place = tl.full((LANES,), NUM_CHOSEN, tl.int32)
    for index in tl.static_range(NUM_CHOSEN):
        is_best = key == tl.max(key, 0)
        place = tl.where(is_best, index, place)
        key = tl.where(is_best, LEAST, key)
    is_chosen = place < NUM_CHOSEN
    exponential = tl.exp(logit - tl.max(number, 0))
    score = exponential / tl.sum(exponential, 0)
    if IS_NORMED:
        score = score / (tl.sum(tl.where(is_chosen, score, 0.0), 0) + 1e-20)
    target = token * NUM_CHOSEN + place
    tl.store(weights + target, score * factor, mask=is_chosen)
    tl.store(chosen + target, expert.to(tl.int64), mask=is_chosen)


def logits(x: Tensor, weight: Tensor) -> Tensor:
    """Return x @ weight.T in fp32, [num_tokens, num_experts], for x [num_tokens, hidden] and fp32 weights."""
    (num_tokens, hidden), num_experts = x.shape, len(weight)
    result = torch.empty(num_tokens, num_experts, dtype=torch.float32, device=x.device)
    _logits[(num_tokens, num_experts)](
        x, weight.contiguous(), result, x.stride(0), num_experts, hidden, COLUMNS, num_warps=1
    )
    return result


def choose(logits: Tensor, num_chosen: int, factor: float, is_normed: bool) -> tuple[Tensor, Tensor]:
    """Return weights (fp32) and experts, [num_tokens, num_chosen] each, as `choose_in_torch` does."""
    num_tokens, num_experts = logits.shape
    weights = torch.empty(num_tokens, num_chosen, dtype=torch.float32, device=logits.device)
    chosen = torch.empty(num_tokens, num_chosen, dtype=torch.int64, device=logits.device)
    lanes = triton.next_power_of_2(num_experts)
    _choose[(num_tokens,)](
        logits.contiguous(), weights, chosen, factor, num_experts, num_chosen, lanes, is_normed, num_warps=1
    )  # fmt: skip
    return weights, chosen
