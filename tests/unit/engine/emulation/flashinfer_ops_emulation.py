"""Emulation of FlashInfer's functions on rows in torch.

It follows the checks and kernels of flashinfer 0.7.2: bf16 or fp16, weights of the same dtype, whole vectors of 16
bytes that begin at multiples of 16, contiguous rows at multiples of their length up to 128; results are written in
place or to `out`. Sums and squares are computed in fp32 and rounded once.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import gcd

import torch
from torch import Tensor

from baton.engine.ops.flashinfer_ops import FlashInferFunctions


def check_rows(rows: Tensor, dims: int) -> None:
    assert rows.dim() == dims
    assert rows.dtype in (torch.bfloat16, torch.float16)
    assert rows.numel(), "a grid of no blocks cannot be launched"
    assert rows.stride(-1) == 1
    width = rows.shape[-1] * rows.element_size()
    assert width % 16 == 0
    assert rows.data_ptr() % 16 == 0
    assert all(stride * rows.element_size() % 16 == 0 for stride in rows.stride()[:-1])


def check_whole_rows(rows: Tensor) -> None:
    if rows.dim() == 2 and rows.is_contiguous():
        assert rows.data_ptr() % gcd(128, rows.shape[-1] * rows.element_size()) == 0


def check_weight(weight: Tensor, rows: Tensor) -> None:
    assert weight.shape == rows.shape[-1:]
    assert weight.dtype == rows.dtype
    assert weight.is_contiguous()
    assert weight.data_ptr() % 16 == 0


def normed(exact: Tensor, weight: Tensor, eps: float) -> Tensor:
    return exact * (exact.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.float()


def rmsnorm(rows: Tensor, weight: Tensor, eps: float = 1e-6, out: Tensor | None = None, offset: float = 0.0) -> Tensor:
    """rows: [num_rows, width], or heads [num_rows, num_heads, width] with any strides."""
    check_rows(rows, min(max(rows.dim(), 2), 3))
    check_whole_rows(rows)
    check_weight(weight, rows)
    out = torch.empty_like(rows) if out is None else out
    assert out.shape == rows.shape
    return out.copy_(normed(rows.float(), weight.float() + offset, eps))


def fused_add_rmsnorm(rows: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6, offset: float = 0.0) -> None:
    for each in (rows, residual):
        check_rows(each, 2)
        check_whole_rows(each)
    assert rows.shape == residual.shape
    assert rows.dtype == residual.dtype
    check_weight(weight, rows)
    total = rows.float() + residual.float()
    residual.copy_(total)
    rows.copy_(normed(total, weight.float() + offset, eps))


def gemma_rmsnorm(rows: Tensor, weight: Tensor, eps: float = 1e-6, out: Tensor | None = None) -> Tensor:
    assert rows.dim() == 2, "compiled ahead of time, it takes no heads"
    return rmsnorm(rows, weight, eps, out, offset=1.0)


def gemma_fused_add_rmsnorm(rows: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6) -> None:
    fused_add_rmsnorm(rows, residual, weight, eps, offset=1.0)


def gelu_tanh_and_mul(gate_up: Tensor) -> Tensor:
    assert gate_up.is_contiguous(), "the kernel does not check"
    check_rows(gate_up, 2)
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (torch.nn.functional.gelu(gate, approximate="tanh") * up).to(gate_up.dtype)


def silu_and_mul(gate_up: Tensor) -> Tensor:
    assert gate_up.is_contiguous(), "the kernel does not check"
    check_rows(gate_up, 2)
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up).to(gate_up.dtype)


def rotate(
    positions: Tensor, query: Tensor, key: Tensor, head_size: int, cos_sin_cache: Tensor, is_neox: bool = True
) -> None:
    """apply_rope_with_cos_sin_cache_inplace, for rotated halves."""
    assert is_neox
    assert positions.dtype in (torch.int32, torch.int64)
    assert positions.is_contiguous()
    assert cos_sin_cache.dtype == torch.float32
    assert cos_sin_cache.is_contiguous()
    assert positions.shape == query.shape[:1] == key.shape[:1]
    assert head_size in (64, 128, 256, 512)
    assert query.data_ptr() != key.data_ptr(), "both are rotated in place"
    cos, sin = cos_sin_cache[positions].unsqueeze(1).chunk(2, dim=-1)
    width = cos_sin_cache.shape[1]
    assert width <= head_size
    assert width // 2 % max(16 // query.element_size(), head_size // 32) == 0, "threads read vectors of one half"
    for heads in (query, key):
        check_rows(heads, 3)
        assert heads.shape[2] == head_size
        first, second = heads[..., :width].float().chunk(2, dim=-1)
        heads[..., :width] = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


@dataclass
class Called:
    """Counts calls of each function."""

    counts: dict[str, int] = field(default_factory=dict)

    def functions(self) -> FlashInferFunctions:
        """The emulation, counted."""
        return FlashInferFunctions(
            norm=self._counted("norm", rmsnorm),
            add_norm=self._counted("add_norm", fused_add_rmsnorm),
            offset_norm=self._counted("offset_norm", gemma_rmsnorm),
            add_offset_norm=self._counted("add_offset_norm", gemma_fused_add_rmsnorm),
            silu_and_mul=self._counted("silu_and_mul", silu_and_mul),
            gelu_tanh_and_mul=self._counted("gelu_tanh_and_mul", gelu_tanh_and_mul),
            rotate=self._counted("rotate", rotate),
        )

    def _counted(self, name: str, function: Callable[..., Tensor | None]) -> Callable[..., Tensor | None]:
        def counted(*args: object, **options: object) -> Tensor | None:
            self.counts[name] = self.counts.get(name, 0) + 1
            return function(*args, **options)

        return counted
