"""Norm and rotation of new queries and keys, and the append of new KV to the cache, in one kernel launch per layer.

Separate launches do the same: norms of queries and of keys, rotation (`LayerOps.rotate`), and the backend's append.
"""

from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from baton.engine.attention import fp8_rows
from baton.engine.execution.kernel_trial import tried
from baton.engine.kv.scales import UNSCALED, KVScales
from baton.engine.ops.base import HeadNorms, Rotation

DTYPES = (torch.bfloat16, torch.float16)
HEAD_DIMS = (64, 128, 256)
TRIAL_HEADS, TRIAL_KV_HEADS, TRIAL_WIDTH = 4, 2, 64
TRIAL_TOLERANCE = 2**-4  # two units in the last place of bfloat16, from 4 on
TRIAL_FP8_TOLERANCE = 1.0  # one unit in the last place of E4M3, from 8 on


class KVAppend(Protocol):
    """Function that does what `append_in_torch` does."""

    def __call__(
        self,
        heads: Tensor,
        num_heads: int,
        rotation: Rotation,
        norms: HeadNorms | None,
        layer_cache: Tensor,
        slot_mapping: Tensor,
        scales: KVScales = UNSCALED,
    ) -> Tensor:
        """Write new KV to its slots and return the rotated queries."""
        ...


def append_in_torch(
    heads: Tensor,
    num_heads: int,
    rotation: Rotation,
    norms: HeadNorms | None,
    layer_cache: Tensor,
    slot_mapping: Tensor,
    scales: KVScales = UNSCALED,
) -> Tensor:
    """Write new KV to its slots and return the rotated queries, [num_tokens, num_heads, head_dim]; for comparison.

    heads: [num_tokens, num_heads + 2 * num_kv_heads, head_dim], queries, keys and values; norms: of queries and keys;
    layer_cache: see `AttentionBackend`, in the dtype of heads or in FP8; slot_mapping: [num_tokens] int64; scales: of
    FP8 KV. As in FlashInfer's kernels, norms and rotations are computed in fp32, and the result of each is rounded.
    """
    num_kv_heads, dtype = (heads.shape[1] - num_heads) // 2, heads.dtype
    qk, v = heads.split_with_sizes([num_heads + num_kv_heads, num_kv_heads], dim=1)
    rows = qk.float()
    if norms is not None:
        rows = rows * (rows.square().mean(-1, keepdim=True) + norms.eps).rsqrt()
        rows = (rows * (norms.weight.float() + norms.offset)).to(dtype).float()
    width = rotation.table.shape[1]
    pairs = rows[..., :width]
    first, second = (pairs[..., 0::2], pairs[..., 1::2]) if rotation.interleaved else pairs.chunk(2, dim=-1)
    cos, sin = rotation.table[rotation.positions].unsqueeze(1).chunk(2, dim=-1)
    rotated = torch.cat([first * cos - second * sin, second * cos + first * sin, rows[..., width:]], dim=-1).to(dtype)
    q, k = rotated.split_with_sizes([num_heads, num_kv_heads], dim=1)
    if layer_cache.dtype == fp8_rows.DTYPE:  # as bytes: not every operation supports FP8 on every device
        k, v = (fp8_rows.encode(new, by).view(torch.uint8) for new, by in ((k, scales.key), (v, scales.value)))
        layer_cache = layer_cache.view(torch.uint8)
    _, num_parts, _, heads_per_part, block_size, _ = layer_cache.shape
    for kind, new in enumerate((k, v)):
        by_slot = layer_cache[:, :, kind].permute(0, 3, 1, 2, 4)  # [num_blocks, block_size, parts, heads, head_dim]
        new_rows = new.reshape(len(new), num_parts, heads_per_part, -1)
        by_slot.index_put_((slot_mapping // block_size, slot_mapping % block_size), new_rows)
    return q


def is_appendable(
    heads: Tensor, num_heads: int, rotation: Rotation, norms: HeadNorms | None, layer_cache: Tensor
) -> bool:
    """Return whether the kernel serves these tensors; see `append_in_torch`."""
    _, num_parts, _, heads_per_part, _, head_dim = layer_cache.shape
    width = rotation.table.shape[1]
    return (
        heads.numel() > 0
        and heads.dtype in DTYPES
        and layer_cache.dtype in (heads.dtype, fp8_rows.DTYPE)
        and head_dim in HEAD_DIMS
        and heads.shape[1:] == (num_heads + 2 * num_parts * heads_per_part, head_dim)
        and heads.stride()[1:] == (head_dim, 1)
        and layer_cache.stride(5) == 1
        and rotation.query_scale is None
        and rotation.table.stride(1) == rotation.positions.stride(0) == 1
        and 0 < width <= head_dim
        and width % 2 == 0
        and (norms is None or norms.weight.is_contiguous())
    )


@cache
def append_for(device: torch.device, dtype: torch.dtype, cached_dtype: torch.dtype) -> KVAppend | None:
    """Return the kernel for a GPU if its results are right in a trial; otherwise log why and return None.

    The trial waits for the GPU, so the first call must not be recorded in a CUDA graph.
    """
    if device.type != "cuda" or dtype not in DTYPES or cached_dtype not in (dtype, fp8_rows.DTYPE):
        return None
    otherwise = "head norms, rotation and KV append take several launches: their kernel does not work"
    return tried(load_kernel, lambda kernel: check_kernel(kernel, device, dtype, cached_dtype), otherwise)


def load_kernel() -> KVAppend:
    """Import the Triton kernel. Raises ImportError if Triton is not installed."""
    from baton.engine.attention.kv_append_triton import append

    return append


def check_kernel(kernel: KVAppend, device: torch.device, dtype: torch.dtype, cached_dtype: torch.dtype) -> None:
    """Append three tokens and compare with torch. Raises ArithmeticError if the results differ."""
    counts, generator = (TRIAL_HEADS, TRIAL_KV_HEADS), torch.Generator().manual_seed(0)
    heads = torch.randn(3, TRIAL_HEADS + 2 * TRIAL_KV_HEADS, TRIAL_WIDTH, generator=generator)
    heads[:, -TRIAL_KV_HEADS:] *= torch.logspace(-12, 10, TRIAL_WIDTH, base=2)  # below and above the range of FP8
    heads = heads.to(device, dtype)
    angles = torch.rand(8, TRIAL_WIDTH // 2, generator=generator)
    table = torch.cat([angles.cos(), angles.sin()], dim=1).to(device)
    rotation = Rotation(table, torch.tensor([7, 0, 5], device=device), interleaved=False)
    weight = torch.rand(sum(counts), TRIAL_WIDTH, generator=generator).to(device, dtype)
    norms, slots = HeadNorms(weight, counts, 1e-6), torch.tensor([17, 3, 32], device=device)
    caches = torch.zeros(2, 3, 1, 2, TRIAL_KV_HEADS, 16, TRIAL_WIDTH, device=device).to(cached_dtype)
    ours, theirs = (
        each(heads, TRIAL_HEADS, rotation, norms, into, slots, KVScales(0.5, 0.25))
        for each, into in zip((kernel, append_in_torch), caches, strict=True)
    )
    (our_keys, our_values), (their_keys, their_values) = (each.float().unbind(2) for each in caches)
    tolerance = TRIAL_FP8_TOLERANCE if cached_dtype == fp8_rows.DTYPE else TRIAL_TOLERANCE
    if not (
        torch.allclose(ours.float(), theirs.float(), rtol=0, atol=TRIAL_TOLERANCE)
        and torch.allclose(our_keys, their_keys, rtol=0, atol=tolerance)
        and torch.equal(our_values, their_values)
    ):
        raise ArithmeticError("its results are wrong")
