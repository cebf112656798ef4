"""Rows of KV in int8: each is its elements times a scale of its own, which lies behind them.

The scale is the greatest absolute value over 127, and elements are rounded to the nearest, to even if there are two. A
row of zeros has the scale 0. One that is not finite has an infinite scale, so that it comes out as no number. The
compiled kernel writes the same bits.
"""

import torch
from torch import Tensor

from baton.engine.kv.dtype import SCALE_BYTES

MOST = 127  # of an element; -128 is left out, so that a row and its negative have the same scale


def encode(rows: Tensor) -> Tensor:
    """rows: [..., width] of floats. Returns [..., width + SCALE_BYTES] of int8."""
    exact = rows.float()
    greatest = exact.abs().amax(-1)
    scale = torch.where(greatest.isfinite(), greatest / MOST, torch.inf).unsqueeze(-1)
    is_ordinary = (scale > 0) & scale.isfinite()
    divided = torch.where(is_ordinary, exact / scale, 0.0)
    items = divided.round().clamp(-MOST, MOST).to(torch.int8)
    return torch.cat([items, scale.view(torch.int8)], dim=-1)


def decode(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """rows: [..., width + SCALE_BYTES] of int8. Returns [..., width] of `dtype`."""
    items, scale = rows.split_with_sizes([rows.shape[-1] - SCALE_BYTES, SCALE_BYTES], dim=-1)
    aligned = scale.clone(memory_format=torch.contiguous_format)  # in the cache it lies wherever the elements end
    return (items.float() * aligned.view(torch.float32)).to(dtype)
