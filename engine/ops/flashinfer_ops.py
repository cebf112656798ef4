"""Row operations by FlashInfer's kernels, on a GPU."""

from dataclasses import dataclass
from math import gcd
from typing import Any

import torch
from torch import Tensor

from baton.engine.activation import Activation
from baton.engine.ops.base import HeadNorms, Rotation
from baton.engine.ops.torch_ops import TorchOps
from baton.extras import FLASHINFER

DTYPES = (torch.bfloat16, torch.float16)
ROTARY_DIMS = (64, 128, 256, 512)  # with dedicated kernels: a warp or less rotates a head in place
OFFSETS = (0.0, 1.0)  # of norms' weights
WARP = 32  # threads that rotate a head
VECTOR_BYTES = 16  # read per thread at once: rows must be a whole number of vectors, aligned to vectors
MOST_ALIGNED = 128  # bytes: contiguous rows to norm must be aligned to their length, at most to this


@dataclass(frozen=True, slots=True)
class FlashInferFunctions:
    """Library's functions that are used here."""

    norm: Any
    add_norm: Any
    offset_norm: Any  # with 1 added to the weight, as in Gemma
    add_offset_norm: Any
    silu_and_mul: Any
    gelu_tanh_and_mul: Any
    rotate: Any

    @classmethod
    def load(cls) -> "FlashInferFunctions":
        """Import the library. Raises MissingExtra if it is not installed, ImportError if it does not load."""
        FLASHINFER.require("FlashInfer's norms and rotations")
        import flashinfer

        return cls(
            norm=flashinfer.rmsnorm,
            add_norm=flashinfer.fused_add_rmsnorm,
            offset_norm=flashinfer.gemma_rmsnorm,
            add_offset_norm=flashinfer.gemma_fused_add_rmsnorm,
            silu_and_mul=flashinfer.silu_and_mul,
            gelu_tanh_and_mul=flashinfer.gelu_tanh_and_mul,
            rotate=flashinfer.apply_rope_with_cos_sin_cache_inplace,
        )


class FlashInferOps:
    """FlashInfer's row operations, each in one pass over memory without a GPU sync; head norms and rotation take three.

    Falls back to torch for tensors whose type, size or alignment has no kernel.
    """

    def __init__(self, functions: FlashInferFunctions | None = None) -> None:
        """Load the library, unless `functions` are given. Raises ImportError if it is not available."""
        self._functions = functions or FlashInferFunctions.load()
        self._torch = TorchOps()

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
        """Return the RMS norm of x over its last dimension."""
        rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
        if offset not in OFFSETS or not _is_normed(rows, weight):
            return self._torch.rms_norm(x, weight, eps, offset)
        norm = self._functions.offset_norm if offset else self._functions.norm
        normed: Tensor = norm(rows, weight, eps)
        return normed.view(x.shape)

    def add_rms_norm(
        self, x: Tensor, addend: Tensor, weight: Tensor, eps: float, offset: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """Return x + addend, stored in x, and its RMS norm, stored in addend."""
        if offset not in OFFSETS or not (_is_normed(x, weight) and _is_normed(addend, weight)):
            return self._torch.add_rms_norm(x, addend, weight, eps, offset)
        add_norm = self._functions.add_offset_norm if offset else self._functions.add_norm
        add_norm(addend, x, weight, eps)
        return x, addend

    def gate_and_mul(self, gate_up: Tensor, activation: Activation = "silu") -> Tensor:
        """Return activation(gate) * up of gate_up [num_tokens, 2 * size]."""
        gate_up = gate_up.contiguous()
        if activation == "clamped_swiglu" or not _is_served(gate_up):
            return self._torch.gate_and_mul(gate_up, activation)
        gate = self._functions.silu_and_mul if activation == "silu" else self._functions.gelu_tanh_and_mul
        result: Tensor = gate(gate_up)
        return result

    def quantise(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Quantise each row of x to uint8 with its own scale."""
        return self._torch.quantise(x)

    def scale(self, x: Tensor, scales: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiply each row by its scale and add the bias."""
        return self._torch.scale(x, scales, bias)

    def weighted_sum(self, rows: Tensor, places: Tensor | None, weights: Tensor) -> Tensor:
        """Sum each token's rows, weighted, in routing order."""
        return self._torch.weighted_sum(rows, places, weights)

    def rotate(self, heads: Tensor, rotation: Rotation, norms: HeadNorms | None = None) -> Tensor:
        """Rotate heads by their tokens' positions, after optional norms; in place unless they are interleaved."""
        if not self._can_rotate(heads, rotation, norms):
            return self._torch.rotate(heads, rotation, norms)
        if norms is not None:
            self._norm_heads(heads, norms)
        if rotation.interleaved:  # convert to halves first, since the library would keep the pairs interleaved
            heads = _halved(heads, rotation.table.shape[1])
        # The library needs both queries and keys. Any heads can be either; a single head gets a dummy key.
        query, key = (heads[:, :-1], heads[:, -1:]) if heads.shape[1] > 1 else (heads, torch.empty_like(heads))
        self._functions.rotate(rotation.positions, query, key, heads.shape[2], rotation.table, is_neox=True)
        return heads

    def _can_rotate(self, heads: Tensor, rotation: Rotation, norms: HeadNorms | None) -> bool:
        head_dim, width = heads.shape[2], rotation.table.shape[1]
        is_normed = norms is None or (
            norms.offset in OFFSETS and _is_served(norms.weight) and norms.weight.dtype == heads.dtype
        )
        per_thread = max(VECTOR_BYTES // heads.element_size(), head_dim // WARP)
        is_whole = width <= head_dim and width % (2 * per_thread) == 0  # no thread has elements of two halves
        return is_normed and is_whole and _is_served(heads) and head_dim in ROTARY_DIMS

    def _norm_heads(self, heads: Tensor, norms: HeadNorms) -> None:
        """Norm heads in place, adjacent heads with the same weight at once."""
        first = 0
        for count in norms.counts:
            part = heads[:, first : first + count]
            if norms.offset:  # without CUTLASS's DSL, this kernel takes rows only
                part.copy_(self.rms_norm(part, norms.weight[first], norms.eps, norms.offset))
            else:
                self._functions.norm(part, norms.weight[first], norms.eps, out=part)
            first += count


def _halved(heads: Tensor, width: int) -> Tensor:
    """Return a copy of heads whose first `width` dimensions, which are pairs, are arranged as halves."""
    halves = heads[..., :width].reshape(*heads.shape[:2], -1, 2).mT.flatten(2)
    return halves if width == heads.shape[2] else torch.cat([halves, heads[..., width:]], dim=2)


def _is_served(rows: Tensor) -> bool:
    """Return whether the kernels support these rows: not empty, of a supported type, in whole aligned vectors."""
    item = rows.element_size()
    return (
        rows.dtype in DTYPES
        and rows.numel() > 0
        and rows.stride(-1) == 1
        and rows.shape[-1] * item % VECTOR_BYTES == 0
        and rows.data_ptr() % VECTOR_BYTES == 0
        and all(stride * item % VECTOR_BYTES == 0 for stride in rows.stride()[:-1])
    )


def _is_normed(rows: Tensor, weight: Tensor) -> bool:
    """Return whether there is a kernel for the norm of these rows [num_rows, size]."""
    is_whole = rows.data_ptr() % gcd(MOST_ALIGNED, rows.shape[-1] * rows.element_size()) == 0
    is_served = _is_served(rows) and (is_whole or not rows.is_contiguous())
    return is_served and _is_served(weight) and weight.dtype == rows.dtype
