"""Row operations by the compiled module, on a CPU."""

from typing import get_args

import torch
from torch import Tensor

from baton.engine.activation import Activation
from baton.engine.native.layer_ops import Bfloat16Ops, Float32Ops, instruction_sets
from baton.engine.ops.base import HeadNorms, Rotation
from baton.engine.ops.head_norms import norm_heads

ACTIVATIONS = get_args(Activation)  # in the order of the compiled enumeration


class NativeOps:
    """Native row operations, each in one pass over memory. All instruction sets give the same bits."""

    def __init__(self, instructions: str | None = None) -> None:
        """instructions: default is the best set available. Raises ValueError for one that this processor lacks."""
        name = instructions or instruction_sets()[0]
        self._ops = {torch.float32: Float32Ops(name), torch.bfloat16: Bfloat16Ops(name)}

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
        """Return the RMS norm of x over its last dimension."""
        rows = x if x.dim() == 2 and x.stride(1) == 1 else x.reshape(-1, x.shape[-1])
        result = torch.empty(x.shape, dtype=x.dtype)
        num_rows, width = rows.shape
        stride, threads = rows.stride(0), torch.get_num_threads()
        pointers = rows.data_ptr(), stride, weight.data_ptr(), offset, result.data_ptr()
        self._ops[x.dtype].norm(*pointers, num_rows, width, eps, threads)
        return result

    def add_rms_norm(
        self, x: Tensor, addend: Tensor, weight: Tensor, eps: float, offset: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """Return x + addend and its RMS norm."""
        x, addend = x.contiguous(), addend.contiguous()
        result = torch.empty_like(x)
        num_rows, width = x.shape
        pointers = x.data_ptr(), addend.data_ptr(), weight.data_ptr(), offset, result.data_ptr()
        self._ops[x.dtype].add_norm(*pointers, num_rows, width, eps, torch.get_num_threads())
        return x, result

    def gate_and_mul(self, gate_up: Tensor, activation: Activation = "silu") -> Tensor:
        """Return activation(gate) * up of gate_up [num_tokens, 2 * size]."""
        gate_up = gate_up.contiguous()
        num_rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        result = torch.empty(num_rows, width, dtype=gate_up.dtype)
        pointers = gate_up.data_ptr(), result.data_ptr()
        which = ACTIVATIONS.index(activation)
        self._ops[gate_up.dtype].gate_and_mul(*pointers, num_rows, width, which, torch.get_num_threads())
        return result

    def quantise(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Quantise each row of x to uint8 with its own scale."""
        if x.stride(1) != 1:
            x = x.contiguous()
        num_rows, width = x.shape
        result, scales = torch.empty(num_rows, width, dtype=torch.uint8), torch.empty(num_rows)
        pointers = x.data_ptr(), x.stride(0), result.data_ptr(), scales.data_ptr()
        self._ops[x.dtype].quantise(*pointers, num_rows, width, torch.get_num_threads())
        return result, scales

    def scale(self, x: Tensor, scales: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiply each row by its scale and add the bias."""
        x = x.contiguous()
        pointers = x.data_ptr(), scales.data_ptr(), 0 if bias is None else bias.data_ptr()
        num_rows, width = x.shape
        self._ops[x.dtype].scale(*pointers, num_rows, width, torch.get_num_threads())
        return x

    def weighted_sum(self, rows: Tensor, places: Tensor | None, weights: Tensor) -> Tensor:
        """Sum each token's rows, weighted, in routing order."""
        rows, weights = rows.contiguous(), weights.contiguous()
        places = places.contiguous() if places is not None else None
        (num_tokens, num_chosen), (num_rows, width) = weights.shape, rows.shape
        assert weights.dtype == torch.float32
        assert places is None or (places.dtype == torch.int64 and len(places) == num_tokens * num_chosen)
        result = torch.empty(num_tokens, width, dtype=rows.dtype)
        pointers = rows.data_ptr(), 0 if places is None else places.data_ptr(), weights.data_ptr(), result.data_ptr()
        counts = num_rows, num_tokens, num_chosen, width
        self._ops[rows.dtype].weighted_sum(*pointers, *counts, torch.get_num_threads())
        return result

    def rotate(self, heads: Tensor, rotation: Rotation, norms: HeadNorms | None = None) -> Tensor:
        """Rotate heads by their tokens' positions, after optional norms; in place."""
        if heads.stride(2) != 1:
            heads = heads.contiguous()
        table, positions = rotation.table, rotation.positions
        width = table.shape[1]
        if norms is not None and width < heads.shape[2]:  # the kernel norms what it rotates
            heads, norms = norm_heads(self, heads, norms), None
        num_tokens, num_heads, head_dim = heads.shape
        assert width <= head_dim
        assert len(positions) == num_tokens
        self._ops[heads.dtype].rotate(
            heads.data_ptr(), heads.stride(0), heads.stride(1), 0 if norms is None else norms.weight.data_ptr(),
            0.0 if norms is None else norms.offset, table.data_ptr(), len(table), positions.data_ptr(),
            num_tokens, num_heads, width, rotation.interleaved, 0.0 if norms is None else norms.eps,
            torch.get_num_threads(),
        )  # fmt: skip
        return heads
