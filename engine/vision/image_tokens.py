"""Image tokens among the tokens of a step, as the model reads them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from baton.engine.execution.device import to_device_async


@dataclass(frozen=True, slots=True)
class ImageTokens:
    """Places of image tokens in a step, and the rotary positions of all its tokens. Built on the CPU."""

    rows: Tensor  # [num_image_tokens] int64: index in the step of each image token
    positions: Tensor  # [3, num_tokens] int64: time, row and column of each token of the step

    def on(self, device: torch.device) -> "ImageTokens":
        """Return the numbers on `device`, copied asynchronously in a single transfer."""
        numbers = to_device_async(torch.cat([self.rows, self.positions.flatten()]), device)
        return ImageTokens(numbers[: len(self.rows)], numbers[len(self.rows) :].view(3, -1))
