"""Rows of int8 KV: elements followed by the row's own scale.

The scale is the largest absolute value over 127; elements are rounded to nearest, ties to even. A row of zeros has the
scale 0. A row that is not finite has an infinite scale, so that it decodes to NaN. The compiled kernel writes the same
bits.
"""

import torch
from torch import Tensor

from baton.engine.kv.dtype import SCALE_BYTES

MOST = 127  # largest element; -128 is not used, so that a row and its negative have the same scale


def encode(rows: Tensor) -> Tensor:
    """Encode float rows [..., width] as int8 [..., width + SCALE_BYTES]."""
    exact = rows.float()
    greatest = exact.abs().amax(-1)
    scale = torch.where(greatest.isfinite(), greatest / MOST, torch.inf).unsqueeze(-1)
    is_ordinary = (scale > 0) & scale.isfinite()
    divided = torch.where(is_ordinary, exact / scale, 0.0)
    items = divided.round().clamp(-MOST, MOST).to(torch.int8)
    return torch.cat([items, scale.view(torch.int8)], dim=-1)


def decode(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Decode int8 rows [..., width + SCALE_BYTES] to [..., width] of `dtype`."""
    items, scale = rows.split_with_sizes([rows.shape[-1] - SCALE_BYTES, SCALE_BYTES], dim=-1)
    aligned = scale.clone(memory_format=torch.contiguous_format)  # in the cache a scale may be unaligned
    return (items.float() * aligned.view(torch.float32)).to(dtype)
