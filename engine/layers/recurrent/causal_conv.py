"""Convolution over the last tokens of each channel, in front of recurrent nets."""

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor


class CausalConv:
    """Convolution of each channel with its own filter, and SiLU of the result; in float32."""

    def __init__(self, filters: Tensor, bias: Tensor | None = None) -> None:
        """filters: [size, width] float32, the newest token's last; bias: [width] float32."""
        self.filters = filters
        self.bias = bias

    def __call__(self, x: Tensor, earlier: Tensor) -> Tensor:
        """Return the result for x [num_seqs, num_tokens, width], flattened to [num_seqs * num_tokens, width] float32.

        earlier: [num_seqs, size - 1, width], the inputs of earlier tokens; updated in place.
        """
        length = x.shape[1]
        padded = torch.cat([earlier, x.float()], dim=1)
        earlier.copy_(padded[:, length:])
        total = padded[:, :length] * self.filters[0]
        for place in range(1, len(self.filters)):
            total.addcmul_(padded[:, place : place + length], self.filters[place])
        if self.bias is not None:
            total.add_(self.bias)
        return F.silu(total).flatten(0, 1)
