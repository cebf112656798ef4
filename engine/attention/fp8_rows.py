"""Rows of KV in FP8 (E4M3 of the OCP's 8-bit floating point, without infinities): each element over one scale.

What is beyond the greatest number becomes that, as in vLLM; what is no number stays none.
"""

import torch
from torch import Tensor

DTYPE = torch.float8_e4m3fn
MOST = 448.0  # the greatest number


def encode(rows: Tensor, scale: float) -> Tensor:
    """rows: of floats. Returns the same shape of DTYPE, elements rounded to the nearest, to even if there are two."""
    divided = rows if scale == 1.0 else rows.float() / scale
    return divided.clamp(-MOST, MOST).to(DTYPE)
