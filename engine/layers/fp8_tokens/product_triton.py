"""The Triton kernel of `product`; importing it requires Triton."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton.engine.layers.fp8_tokens.product import MOST_TOKENS, ScaledMatrix
from baton.engine.layers.fp8_tokens.quantise_triton import RECIPROCAL, TINY

COLUMNS = 128  # that a warp multiplies at once, and that share a scale in a block-scaled weight
PROCESSORS = 132  # of an H100 or H200


@dataclass(frozen=True, slots=True)
class Tiling:
    """Division of a product: a program has `rows` of the weight, and its warps take turns with 128 columns each."""

    rows: int
    warps: int
    stages: int  # turns whose elements are loaded or multiplied at once


@triton.jit
def _magnitudes(elements):  # type: ignore[no-untyped-def]
    # Bits without the sign are in the order of numbers, and NaN's are the largest.
    return elements.to(tl.int16, bitcast=True).to(tl.int32) & 0x7FFF


@triton.jit
def _scale(largest):  # type: ignore[no-untyped-def]
    scale = (largest << 16).to(tl.float32, bitcast=True) * RECIPROCAL
    return tl.where(scale < TINY, TINY, scale)  # NaN stays


@triton.jit
def _rounded(elements, scale, inverse):  # type: ignore[no-untyped-def]
    """Return elements / scale, rounded to e4m3, in fp16."""
    numbers = elements.to(tl.float32)
    quotient = numbers * inverse
    # Corrected by its remainder, it is rounded as by a division (Markstein), which takes three times as long.
    quotient = tl.fma(tl.fma(-quotient, scale, numbers), inverse, quotient)
    return quotient.to(tl.float8e4nv).to(tl.float16)


# Numbers of tokens are not specialised: graphs of several batch sizes replay one compiled kernel.
@triton.jit(do_not_specialize=["num_tokens", "row_stride"])  # type: ignore[untyped-decorator]
def _product(  # type: ignore[no-untyped-def]
    tokens, values, scales, bias, result, num_tokens, num_outputs, size, token_stride, row_stride, column_stride,
    IS_BLOCKED: tl.constexpr, ROWS_A_SCALE: tl.constexpr, HAS_BIAS: tl.constexpr,  # noqa: N803
    TOKENS: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, WARPS: tl.constexpr, STAGES: tl.constexpr,  # noqa: N803
):  # fmt: skip
    part = tl.arange(0, WARPS)[:, None, None] * COLUMNS
    lane = tl.arange(0, COLUMNS)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token = tl.arange(0, TOKENS)
    is_row, is_token = row < num_outputs, token < num_tokens
    some_row = tl.where(is_row, row, 0)[None, :, None]
    row_columns = values + some_row.to(tl.int64) * size + lane[None, None, :]
    token_columns = tokens + token[None, None, :] * token_stride + lane[None, :, None]
    row_scales = scales + some_row // ROWS_A_SCALE * row_stride
    if not IS_BLOCKED:
        peaks = tl.zeros((WARPS, COLUMNS, TOKENS), tl.int32)
        for first in tl.range(0, size, WARPS * COLUMNS, num_stages=STAGES):
            start = first + part
            is_element = (start + lane[None, :, None] < size) & is_token[None, None, :]
            peaks = tl.maximum(peaks, _magnitudes(tl.load(token_columns + start, mask=is_element, other=0.0)))
        token_scale = _scale(tl.max(tl.max(peaks, 1), 0))[None, None, :]
        inverse = tl.div_rn(1.0, token_scale)
    sums = tl.zeros((WARPS, ROWS, TOKENS), tl.float32)
    for first in tl.range(0, size, WARPS * COLUMNS, num_stages=STAGES):
        start = first + part
        weight = tl.load(row_columns + start, mask=start + lane[None, None, :] < size, other=0.0).to(tl.float16)
        is_element = (start + lane[None, :, None] < size) & is_token[None, None, :]
        elements = tl.load(token_columns + start, mask=is_element, other=0.0)
        if IS_BLOCKED:
            # Tokens beyond the last are not zero: to divide by the least scale takes several times as long.
            elements = tl.where(is_token[None, None, :], elements, 1.0)
            block_scale = _scale(tl.max(_magnitudes(elements), 1, keep_dims=True))
            weight_scale = tl.load(row_scales + start // COLUMNS * column_stride, mask=start < size, other=0.0)
            rounded = _rounded(elements, block_scale, tl.div_rn(1.0, block_scale))
            sums += tl.dot(weight, rounded) * weight_scale * block_scale
        else:
            sums = tl.dot(weight, _rounded(elements, token_scale, inverse), sums)
    product = tl.sum(sums, 0, keep_dims=True)
    if not IS_BLOCKED:
        product = product * tl.load(row_scales) * token_scale
    product = tl.reshape(product, (ROWS, TOKENS)).to(tl.bfloat16)
    if HAS_BIAS:
        addend = tl.load(bias + row, mask=is_row, other=0.0)[:, None]
        product = (product.to(tl.float32) + addend.to(tl.float32)).to(tl.bfloat16)
    place = result + token[None, :] * num_outputs + row[:, None]
    tl.store(place, product, mask=is_row[:, None] & is_token[None, :])


def tiling_of(num_outputs: int) -> Tiling:
    """Choose the tiling for a weight's rows, so that all multiprocessors have programs, and their memory holds them."""
    if num_outputs <= PROCESSORS * 16:
        return Tiling(rows=16, warps=8, stages=4)
    return Tiling(rows=32, warps=8, stages=4) if num_outputs <= PROCESSORS * 32 else Tiling(rows=32, warps=4, stages=3)


def product(x: Tensor, weight: ScaledMatrix, bias: Tensor | None, tiling: Tiling | None = None) -> Tensor:
    """See `product.few_token_product`. x: bfloat16 of at most `MOST_TOKENS`, each row contiguous."""
    num_tokens, size = x.shape
    tiling = tiling or tiling_of(weight.num_outputs)
    result = torch.empty(num_tokens, weight.num_outputs, dtype=torch.bfloat16, device=x.device)
    _product[(triton.cdiv(weight.num_outputs, tiling.rows),)](
        x, weight.values, weight.scales, result if bias is None else bias, result,
        num_tokens, weight.num_outputs, size, x.stride(0), weight.scales.stride(0), weight.scales.stride(1),
        IS_BLOCKED=weight.tile_columns < size, ROWS_A_SCALE=weight.tile_rows, HAS_BIAS=bias is not None,
        TOKENS=MOST_TOKENS, COLUMNS=COLUMNS,
        ROWS=tiling.rows, WARPS=tiling.warps, STAGES=tiling.stages,
        num_warps=tiling.warps,
    )  # fmt: skip
    return result
