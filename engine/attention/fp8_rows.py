"""Rows of FP8 KV (E4M3 of the OCP 8-bit floating point format, without infinities): elements divided by one scale.

Values out of range saturate, as in vLLM; NaN stays NaN.
"""

import torch
from torch import Tensor

DTYPE = torch.float8_e4m3fn
MOST = 448.0  # largest number


def encode(rows: Tensor, scale: float) -> Tensor:
    """Encode float rows as DTYPE in the same shape, rounded to nearest, ties to even."""
    divided = rows if scale == 1.0 else rows.float() / scale
    return divided.clamp(-MOST, MOST).to(DTYPE)
