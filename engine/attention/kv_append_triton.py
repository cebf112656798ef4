"""The Triton kernel of `kv_append`; importing it requires Triton.

A program serves up to `GROUP` heads of one kind (queries, keys or values) of one token, with one warp. It reads slots
and positions on the device, so a recorded launch serves whatever these tensors hold when it is replayed.
"""

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from baton.engine.attention import fp8_rows
from baton.engine.kv.scales import UNSCALED, KVScales
from baton.engine.ops.base import HeadNorms, Rotation

GROUP = 4
MOST = tl.constexpr(fp8_rows.MOST)


@triton.jit  # type: ignore[untyped-decorator]
def _store(places, rows, mask, factor, DTYPE: tl.constexpr, IS_FP8: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    rounded = rows.to(DTYPE)
    if IS_FP8:
        scaled = rounded.to(tl.float32) * factor
        tl.store(places, tl.clamp(scaled, -MOST, MOST, propagate_nan=tl.PropagateNan.ALL).to(tl.float8e4nv), mask=mask)
    else:
        tl.store(places, rounded, mask=mask)


@triton.jit  # type: ignore[untyped-decorator]
def _norm(rows, scale, weight, mask, offset, DTYPE: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    factors = tl.load(weight, mask=mask, other=0.0).to(tl.float32) + offset
    return (rows * scale * factors).to(DTYPE).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _rotate(  # type: ignore[no-untyped-def]
    source, weight, angles, target, is_head, eps, offset, factor,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, PAIRS: tl.constexpr, REST: tl.constexpr,  # noqa: N803
    IS_INTERLEAVED: tl.constexpr, HAS_NORMS: tl.constexpr, DTYPE: tl.constexpr, IS_FP8: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Norm and rotate the heads at `source` [GROUP] and store them at `target` [GROUP]."""
    HALF: tl.constexpr = WIDTH // 2  # noqa: N806
    pair = tl.arange(0, PAIRS)[None, :]
    if IS_INTERLEAVED:
        first_column, second_column = 2 * pair, 2 * pair + 1
    else:
        first_column, second_column = pair, pair + HALF
    mask = is_head[:, None] & (pair < HALF)
    first = tl.load(source[:, None] + first_column, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(source[:, None] + second_column, mask=mask, other=0.0).to(tl.float32)
    if REST > 0:
        column = WIDTH + tl.arange(0, REST)[None, :]
        rest_mask = is_head[:, None] & (column < HEAD_DIM)
        rest = tl.load(source[:, None] + column, mask=rest_mask, other=0.0).to(tl.float32)
    if HAS_NORMS:
        squares = tl.sum(first * first, 1) + tl.sum(second * second, 1)
        if REST > 0:
            squares += tl.sum(rest * rest, 1)
        scale = tl.rsqrt(squares / HEAD_DIM + eps)[:, None]
        first = _norm(first, scale, weight[:, None] + first_column, mask, offset, DTYPE)
        second = _norm(second, scale, weight[:, None] + second_column, mask, offset, DTYPE)
        if REST > 0:
            rest = _norm(rest, scale, weight[:, None] + column, rest_mask, offset, DTYPE)
    cos = tl.load(angles + pair, mask=pair < HALF, other=0.0)
    sin = tl.load(angles + HALF + pair, mask=pair < HALF, other=0.0)
    _store(target[:, None] + pair, first * cos - second * sin, mask, factor, DTYPE, IS_FP8)
    _store(target[:, None] + HALF + pair, second * cos + first * sin, mask, factor, DTYPE, IS_FP8)
    if REST > 0:
        _store(target[:, None] + column, rest, rest_mask, factor, DTYPE, IS_FP8)


@triton.jit(do_not_specialize=["positions", "slots"])  # type: ignore[untyped-decorator]  # their alignment varies
def _append(  # type: ignore[no-untyped-def]
    heads, queries, cache, weight, table, positions, slots,
    token_stride, table_stride, block_stride, part_stride, kind_stride, head_stride, row_stride,
    eps, offset, key_factor, value_factor,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEADS_PER_PART: tl.constexpr, BLOCK_SIZE: tl.constexpr,  # noqa: N803
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, PAIRS: tl.constexpr, REST: tl.constexpr, GROUP: tl.constexpr,  # noqa: N803
    IS_INTERLEAVED: tl.constexpr, HAS_NORMS: tl.constexpr, IS_FP8: tl.constexpr,  # noqa: N803
):  # fmt: skip
    QUERY_GROUPS: tl.constexpr = (NUM_HEADS + GROUP - 1) // GROUP  # noqa: N806
    KV_GROUPS: tl.constexpr = (NUM_KV_HEADS + GROUP - 1) // GROUP  # noqa: N806
    DTYPE: tl.constexpr = heads.dtype.element_ty  # noqa: N806
    token, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    source = heads + token * token_stride
    if group < QUERY_GROUPS:
        head = group * GROUP + tl.arange(0, GROUP)
        angles = table + tl.load(positions + token) * table_stride
        _rotate(
            source + head * HEAD_DIM, weight + head * HEAD_DIM, angles, queries + (token * NUM_HEADS + head) * HEAD_DIM,
            head < NUM_HEADS, eps, offset, 1.0,
            HEAD_DIM, WIDTH, PAIRS, REST, IS_INTERLEAVED, HAS_NORMS, DTYPE, False,
        )  # fmt: skip
    else:
        slot = tl.load(slots + token)
        row = cache + slot // BLOCK_SIZE * block_stride + slot % BLOCK_SIZE * row_stride
        if group < QUERY_GROUPS + KV_GROUPS:
            head = (group - QUERY_GROUPS) * GROUP + tl.arange(0, GROUP)
            target = row + head // HEADS_PER_PART * part_stride + head % HEADS_PER_PART * head_stride
            angles = table + tl.load(positions + token) * table_stride
            _rotate(
                source + (NUM_HEADS + head) * HEAD_DIM, weight + (NUM_HEADS + head) * HEAD_DIM, angles, target,
                head < NUM_KV_HEADS, eps, offset, key_factor,
                HEAD_DIM, WIDTH, PAIRS, REST, IS_INTERLEAVED, HAS_NORMS, DTYPE, IS_FP8,
            )  # fmt: skip
        else:
            head = (group - QUERY_GROUPS - KV_GROUPS) * GROUP + tl.arange(0, GROUP)
            target = row + kind_stride + head // HEADS_PER_PART * part_stride + head % HEADS_PER_PART * head_stride
            column = tl.arange(0, HEAD_DIM)[None, :]
            mask = (head < NUM_KV_HEADS)[:, None] & (column < HEAD_DIM)
            values = source + (NUM_HEADS + NUM_KV_HEADS + head) * HEAD_DIM
            rows = tl.load(values[:, None] + column, mask=mask, other=0.0)
            _store(target[:, None] + column, rows, mask, value_factor, DTYPE, IS_FP8)


def append(
    heads: Tensor,
    num_heads: int,
    rotation: Rotation,
    norms: HeadNorms | None,
    layer_cache: Tensor,
    slot_mapping: Tensor,
    scales: KVScales = UNSCALED,
) -> Tensor:
    """Append new KV and return the rotated queries, in new memory, as `append_in_torch` does.

    `is_appendable` must hold. FP8 keys are multiplied by the scale's reciprocal, as torch divides on a GPU.
    """
    num_tokens, _, head_dim = heads.shape
    _, num_parts, _, heads_per_part, block_size, _ = layer_cache.shape
    num_kv_heads, width = num_parts * heads_per_part, rotation.table.shape[1]
    queries = torch.empty(num_tokens, num_heads, head_dim, dtype=heads.dtype, device=heads.device)
    block_stride, part_stride, kind_stride, head_stride, row_stride, _ = layer_cache.stride()
    groups = triton.cdiv(num_heads, GROUP) + 2 * triton.cdiv(num_kv_heads, GROUP)
    _append[(num_tokens, groups)](
        heads, queries, layer_cache, heads if norms is None else norms.weight, rotation.table,
        rotation.positions, slot_mapping,
        heads.stride(0), rotation.table.stride(0), block_stride, part_stride, kind_stride, head_stride, row_stride,
        0.0 if norms is None else norms.eps, 0.0 if norms is None else norms.offset,
        _reciprocal(scales.key), _reciprocal(scales.value),
        num_heads, num_kv_heads, heads_per_part, block_size, head_dim, width,
        triton.next_power_of_2(width // 2), triton.next_power_of_2(head_dim - width) if width < head_dim else 0, GROUP,
        rotation.interleaved, norms is not None, layer_cache.dtype == fp8_rows.DTYPE,
        num_warps=1,
    )  # fmt: skip
    return queries


def _reciprocal(scale: float) -> float:
    return float(np.float32(1) / np.float32(scale))
