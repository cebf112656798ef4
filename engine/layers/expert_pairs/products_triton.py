"""The Triton kernels of `products`; importing it requires Triton.

A program is one warp, which reads 16 bytes per thread and row at once, from several rows and several times before it
multiplies them. It keeps a sum per column and adds those once, at the end. Programs that follow each other compute the
same rows for other tokens, so an expert that several tokens chose is read from memory once, and from the L2 cache for
the others. Shapes and the experts, which are read on the device, decide everything, so a recorded launch serves
whatever the tensors hold when it is replayed.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

COLUMNS = 256  # 16 bytes for each thread of a warp
UNROLL = tl.constexpr(4)
GATE_ROWS = 2  # of gates that a program computes, and as many of ups
DOWN_ROWS = 8  # of all experts of a token together


@triton.jit  # type: ignore[untyped-decorator]
def _gate_up(  # type: ignore[no-untyped-def]
    x, chosen, weight, activated, x_stride,
    NUM_CHOSEN: tl.constexpr, HIDDEN: tl.constexpr, INNER: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    WHOLE: tl.constexpr = HIDDEN // COLUMNS * COLUMNS  # noqa: N806
    pair, column = tl.program_id(0), tl.arange(0, COLUMNS)[None, :]
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    source = x + pair // NUM_CHOSEN * x_stride + column
    gates = weight + tl.load(chosen + pair) * (2 * INNER * HIDDEN) + row[:, None] * HIDDEN + column
    ups = gates + INNER * HIDDEN
    gate, up = tl.zeros((ROWS, COLUMNS), tl.float32), tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in tl.range(0, WHOLE, COLUMNS, loop_unroll_factor=UNROLL):
        gate_part, up_part, inputs = tl.load(gates + start), tl.load(ups + start), tl.load(source + start)
        gate += gate_part.to(tl.float32) * inputs.to(tl.float32)
        up += up_part.to(tl.float32) * inputs.to(tl.float32)
    if WHOLE < HIDDEN:
        mask = WHOLE + column < HIDDEN
        inputs = tl.load(source + WHOLE, mask=mask, other=0.0).to(tl.float32)
        gate += tl.load(gates + WHOLE, mask=mask, other=0.0).to(tl.float32) * inputs
        up += tl.load(ups + WHOLE, mask=mask, other=0.0).to(tl.float32) * inputs
    gated = tl.sum(gate, 1).to(tl.bfloat16).to(tl.float32)
    factor = tl.sum(up, 1).to(tl.bfloat16).to(tl.float32)
    tl.store(activated + pair * INNER + row, (gated / (1 + tl.exp(-gated)) * factor).to(tl.bfloat16))


@triton.jit  # type: ignore[untyped-decorator]
def _down(  # type: ignore[no-untyped-def]
    activated, chosen, weights, weight, result,
    NUM_CHOSEN: tl.constexpr, HIDDEN: tl.constexpr, INNER: tl.constexpr, CHOSEN: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    WHOLE: tl.constexpr = INNER // COLUMNS * COLUMNS  # noqa: N806
    choice, column = tl.arange(0, CHOSEN), tl.arange(0, COLUMNS)[None, None, :]
    pair, is_choice = tl.program_id(0) * NUM_CHOSEN + choice, choice < NUM_CHOSEN
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    expert = tl.load(chosen + pair, mask=is_choice, other=0)
    share = tl.load(weights + pair, mask=is_choice, other=0.0)
    source = activated + pair[None, :, None] * INNER + column
    rows = weight + expert[None, :, None] * (HIDDEN * INNER) + row[:, None, None] * INNER + column
    total = tl.zeros((ROWS, CHOSEN, COLUMNS), tl.float32)
    mask = is_choice[None, :, None]
    for start in tl.range(0, WHOLE, COLUMNS, loop_unroll_factor=UNROLL):
        part, inputs = tl.load(rows + start, mask=mask, other=0.0), tl.load(source + start, mask=mask, other=0.0)
        total += part.to(tl.float32) * inputs.to(tl.float32)
    if WHOLE < INNER:
        mask = mask & (WHOLE + column < INNER)
        part = tl.load(rows + WHOLE, mask=mask, other=0.0)
        total += part.to(tl.float32) * tl.load(source + WHOLE, mask=mask, other=0.0).to(tl.float32)
    outputs = tl.sum(total, 2).to(tl.bfloat16).to(tl.float32)  # [ROWS, CHOSEN]
    weighted = (outputs * share[None, :]).to(tl.bfloat16).to(tl.float32)
    tl.store(result + tl.program_id(0) * HIDDEN + row, tl.sum(weighted, 1).to(tl.bfloat16))


def products(x: Tensor, chosen: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Return the weighted sums of the experts' outputs, in two launches, as `products_in_torch` does.

    `is_served` must hold.
    """
    (num_tokens, hidden), (_, num_chosen), inner = x.shape, chosen.shape, down.shape[2]
    padded = triton.next_power_of_2(num_chosen)
    rows = max(1, DOWN_ROWS // padded)
    activated = torch.empty(num_tokens * num_chosen, inner, dtype=x.dtype, device=x.device)
    result = torch.empty(num_tokens, hidden, dtype=x.dtype, device=x.device)
    _gate_up[(num_tokens * num_chosen, inner // GATE_ROWS)](
        x, chosen, gate_up, activated, x.stride(0), num_chosen, hidden, inner, GATE_ROWS, COLUMNS, num_warps=1
    )
    _down[(num_tokens, hidden // rows)](
        activated,
        chosen,
        weights.contiguous(),
        down,
        result,
        num_chosen,
        hidden,
        inner,
        padded,
        rows,
        COLUMNS,
        num_warps=1,
    )
    return result
