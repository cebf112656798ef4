"""Products of few tokens, as in decodes of few requests, by one kernel that also quantises the tokens.

Such a product takes the time to read its weight. Torch's, in tiles of 128 rows of the weight, leaves most of a GPU's
multiprocessors idle.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from baton.engine.execution.kernel_trial import tried
from baton.engine.layers.fp8_tokens.quantise import E4M3, quantise_in_torch

MOST_TOKENS = 8  # tensor cores multiply these at once; with more, torch is as fast
HOPPER = 9  # compute capability of the GPUs that the tiles are made for
TRIAL_SHAPE = (272, 640)
TRIAL_TOLERANCE = 2**-7  # of the result's largest element; a result is rounded to bfloat16 once


@dataclass(frozen=True, slots=True)
class ScaledMatrix:
    """FP8 weight with a scale for each tile of its elements."""

    values: Tensor  # [num_outputs or more, size] in e4m3, contiguous
    scales: Tensor  # [tiles of rows, tiles of columns] in fp32, with any strides
    num_outputs: int
    tile_rows: int
    tile_columns: int  # `size`, or 128; tokens have a scale for as many columns


Product = Callable[[Tensor, ScaledMatrix, Tensor | None], Tensor]


def few_token_product(x: Tensor, weight: ScaledMatrix, bias: Tensor | None) -> Tensor | None:
    """Return x @ weight.T + bias, [num_tokens, num_outputs], for x [num_tokens, size]; None if torch must compute it.

    Tokens are rounded to e4m3 as by `quantise`. Sums are in fp32 and rounded to bfloat16 once, before the bias is
    added. The order of sums does not depend on the number of tokens.
    """
    if not x.is_cuda or x.dtype != torch.bfloat16 or x.stride(1) != 1 or not 0 < len(x) <= MOST_TOKENS:
        return None
    kernel = product_kernel(x.device, weight.tile_columns == weight.values.shape[1])
    return None if kernel is None else kernel(x, weight, bias)


@cache
def product_kernel(device: torch.device, has_whole_rows: bool) -> Product | None:
    """Return the Triton kernel if its results on the device are right; otherwise log why and return None.

    has_whole_rows: a scale is that of a row, not of 128 columns. Other GPUs than Hopper get None.
    """
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != HOPPER:
        return None
    return tried_kernel(device, has_whole_rows)


def tried_kernel(device: torch.device, has_whole_rows: bool) -> Product | None:
    """Try the kernel on the device; see `product_kernel`."""
    otherwise = "FP8 products of few tokens are torch's, since Triton does not work here"
    return tried(load_kernel, lambda kernel: check_kernel(kernel, device, has_whole_rows), otherwise)


def check_kernel(kernel: Product, device: torch.device, has_whole_rows: bool) -> None:
    """Compare products of few tokens with exact ones. Raises ArithmeticError if they differ."""
    num_outputs, size = TRIAL_SHAPE
    values = (torch.arange(num_outputs * size, device=device) % 251 - 125).view(num_outputs, size).float().to(E4M3)
    width, rows = (size, 1) if has_whole_rows else (128, 128)
    shape = (-(-num_outputs // rows), size // width)
    scales = torch.linspace(0.5, 2, shape[0] * shape[1], device=device).view(shape)
    weight = ScaledMatrix(values, scales, num_outputs, rows, width)
    for num_tokens in (3, MOST_TOKENS):
        x = (torch.arange(num_tokens * size, device=device) % 613 - 400).view(num_tokens, size).bfloat16()
        found, expected = kernel(x, weight, None).double(), exact_product(x, weight)
        if not (found - expected).abs().max() <= TRIAL_TOLERANCE * expected.abs().max():
            raise ArithmeticError("its results are wrong")


def load_kernel() -> Product:
    """Import the Triton kernel. Raises ImportError if Triton is not installed."""
    from baton.engine.layers.fp8_tokens.product_triton import product

    return product


def exact_product(x: Tensor, weight: ScaledMatrix) -> Tensor:
    """Return x @ weight.T in double precision, with the tokens that torch quantises."""
    tokens, token_scales = quantise_in_torch(x, weight.tile_columns, len(x))
    num_outputs, width = weight.num_outputs, weight.tile_columns
    rows = weight.scales.double().repeat_interleave(weight.tile_rows, 0)[:num_outputs]
    scales = rows.repeat_interleave(width, 1)[:, : x.shape[1]]
    return (tokens.double() * token_scales.repeat_interleave(width, 1)) @ (
        weight.values[:num_outputs].double() * scales
    ).T
