"""Rows of int4 KV: codes of 4 bits, two in a byte, followed by the row's own scale.

A code from 0 to 15 stands for -8 to 7, times the scale. The number that is greatest in absolute value becomes -8 (of
two, the positive one), so a scale may be negative; the others are rounded to nearest, ties to even, and are 7 at most.
Byte i holds number i in its low half and number i + width / 2 in its high half. A row of zeros has the scale 0. A row
that is not finite has an infinite scale, so that it decodes to NaN. The compiled kernel writes the same bits.
"""

import torch
from torch import Tensor

from baton.engine.kv.dtype import SCALE_BYTES

DTYPE = torch.uint8
LEAST, MOST = -8, 7


def encode(rows: Tensor) -> Tensor:
    """Encode float rows [..., width] as bytes [..., width / 2 + SCALE_BYTES]; the width is even."""
    exact = rows.float()
    greatest, least = exact.amax(-1), exact.amin(-1)
    extreme = torch.where(greatest >= -least, greatest, least) / LEAST
    scale = torch.where(exact.isfinite().all(-1), extreme, torch.inf)
    scale = torch.where(scale == 0, 0.0, scale).unsqueeze(-1)  # without a sign
    is_ordinary = (scale != 0) & scale.isfinite()
    divided = torch.where(is_ordinary, exact / scale, 0.0)
    low, high = (divided.round().clamp(LEAST, MOST) - LEAST).to(DTYPE).chunk(2, dim=-1)
    return torch.cat([low | high << 4, scale.view(DTYPE)], dim=-1)


def decode(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Decode bytes [..., width / 2 + SCALE_BYTES] to [..., width] of `dtype`."""
    codes, scale = rows.split_with_sizes([rows.shape[-1] - SCALE_BYTES, SCALE_BYTES], dim=-1)
    aligned = scale.clone(memory_format=torch.contiguous_format)  # in the cache a scale may be unaligned
    numbers = torch.cat([codes & 15, codes >> 4], dim=-1).float() + LEAST
    return (numbers * aligned.view(torch.float32)).to(dtype)
