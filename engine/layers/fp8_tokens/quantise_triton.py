"""The Triton kernel of `quantise`; importing it requires Triton."""

import torch
import triton
import triton.language as tl
from torch import Tensor

STRETCHES = 16  # of 128 columns that a program quantises
ELEMENTS_A_WARP = 512
FEWEST_WARPS, MOST_WARPS = 4, 16

# The constants of `quantise_in_torch`; its tests compare the two.
RECIPROCAL = tl.constexpr(1 / 448)
TINY = tl.constexpr(2.0**-126)


# Numbers of tokens are not specialised: graphs of all batch sizes replay one compiled kernel.
@triton.jit(do_not_specialize=["num_tokens", "num_rows"])  # type: ignore[untyped-decorator]
def _quantise(  # type: ignore[no-untyped-def]
    x, values, scales, row_stride, num_stretches, num_tokens, num_rows,
    WIDTH: tl.constexpr, LANES: tl.constexpr, STRETCHES: tl.constexpr,  # noqa: N803
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    stretch = tl.program_id(1) * STRETCHES + tl.arange(0, STRETCHES)
    lane = tl.arange(0, LANES)
    column = stretch[:, None] * WIDTH + lane[None, :]
    num_filled = tl.where(row < num_tokens, num_stretches, 0)  # none in a padding row
    is_filled = (stretch < num_filled)[:, None] & (lane < WIDTH)[None, :]
    elements = tl.load(x + row * row_stride + column, mask=is_filled, other=0.0)
    bits = elements.to(tl.int16, bitcast=True).to(tl.int32)
    largest = tl.max(bits & 0x7FFF, 1)  # bits of magnitudes are in the order of numbers, and NaN's are the largest
    scale = (largest << 16).to(tl.float32, bitcast=True) * RECIPROCAL
    scale = tl.where(scale < TINY, TINY, scale)  # NaN stays
    quotients = tl.div_rn((bits << 16).to(tl.float32, bitcast=True), scale[:, None])
    first = values + row * num_stretches * WIDTH
    is_column = (stretch < num_stretches)[:, None] & (lane < WIDTH)[None, :]
    tl.store(first + column, quotients.to(tl.float8e4nv), mask=is_column)
    tl.store(scales + stretch.to(tl.int64) * num_rows + row, scale, mask=stretch < num_stretches)


def quantise(x: Tensor, width: int, num_rows: int) -> tuple[Tensor, Tensor]:
    """See `quantise.quantise`. x: bfloat16, each row contiguous; values and scales have `num_rows` rows."""
    num_tokens, size = x.shape
    num_stretches = size // width
    values = torch.empty(num_rows, size, dtype=torch.float8_e4m3fn, device=x.device)
    column_stride = num_rows if num_stretches > 1 else 1
    scales = torch.empty_strided((num_rows, num_stretches), (1, column_stride), dtype=torch.float32, device=x.device)
    lanes = triton.next_power_of_2(width)
    stretches = min(STRETCHES, triton.next_power_of_2(num_stretches))
    warps = min(max(lanes * stretches // ELEMENTS_A_WARP, FEWEST_WARPS), MOST_WARPS)
    _quantise[(num_rows, triton.cdiv(num_stretches, stretches))](
        x, values, scales, x.stride(0), num_stretches, num_tokens, num_rows, width, lanes, stretches, num_warps=warps
    )
    return values, scales
