"""Quantisation of tokens by one kernel, or by torch's operations."""

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from baton.engine.execution.kernel_trial import tried

E4M3 = torch.float8_e4m3fn
LAST = 448.0  # largest number in e4m3
TINY = torch.finfo(torch.float32).tiny

Quantise = Callable[[Tensor, int, int], tuple[Tensor, Tensor]]


def quantise(x: Tensor, width: int, row_tile: int = 1) -> tuple[Tensor, Tensor]:
    """Quantise x [num_tokens, size] to e4m3, with a scale per `width` columns of a row, from the largest element.

    Returns the values [num_rows, size] and the scales [num_rows, size / width] fp32, column-major; num_rows is
    num_tokens rounded up to a multiple of `row_tile`, with rows of zeros. Columns that are not all finite get a scale
    that is not finite. On a GPU, one kernel computes bfloat16 tokens, with torch's results bit for bit.
    """
    num_rows = -(-len(x) // row_tile) * row_tile
    if x.is_cuda and x.dtype == torch.bfloat16 and x.stride(1) == 1 and num_rows:
        kernel = quantise_kernel(x.device)
        if kernel is not None:
            return kernel(x, width, num_rows)
    return quantise_in_torch(x, width, num_rows)


def quantise_in_torch(x: Tensor, width: int, num_rows: int) -> tuple[Tensor, Tensor]:
    """Quantise with torch's operations, about eight kernels on a GPU; see `quantise`."""
    num_tokens, size = x.shape
    if num_rows > num_tokens:
        x = F.pad(x, (0, 0, 0, num_rows - num_tokens))
    stretches = x.reshape(num_rows, size // width, width)
    # Multiplied, since torch divides by a number exactly on a CPU and by its rounded reciprocal on a GPU.
    scales = stretches.abs().amax(2).float().mul_(1 / LAST).clamp_(min=TINY)
    values = (stretches / scales.unsqueeze(2)).to(E4M3).flatten(1)  # divided in fp32
    return values, scales.T.contiguous().T


@cache
def quantise_kernel(device: torch.device) -> Quantise | None:
    """Return the Triton kernel if its results on the device equal torch's; otherwise log why and return None."""
    otherwise = "tokens are quantised by torch's operations, since Triton does not work here"
    return tried(load_kernel, lambda kernel: check_kernel(kernel, device), otherwise)


def load_kernel() -> Quantise:
    """Import the Triton kernel. Raises ImportError if Triton is not installed."""
    from baton.engine.layers.fp8_tokens.quantise_triton import quantise

    return quantise


def check_kernel(kernel: Quantise, device: torch.device) -> None:
    """Quantise five tokens and compare with torch. Raises ArithmeticError if the results differ."""
    x = torch.arange(-640, 640, device=device).view(5, 256).bfloat16()
    for width in (128, 256):
        if not all(map(is_same, kernel(x, width, 8), quantise_in_torch(x, width, 8))):
            raise ArithmeticError("its results are wrong")


def is_same(first: Tensor, second: Tensor) -> bool:
    """Return whether tensors of e4m3 or fp32 are equal bit by bit, apart from the bits of NaN."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    bits = torch.uint8 if first.dtype == E4M3 else torch.int32
    is_equal = first.contiguous().view(bits) == second.contiguous().view(bits)
    return bool((is_equal | (first.float().isnan() & second.float().isnan())).all())
