"""From pixels to the input of the encoder, and the places of patches in the image."""

import torch
from torch import Tensor

from baton.engine.vision.config import CHANNELS, MEAN, STD, VisionConfig
from baton.engine.vision.image import Image


def patches_of(image: Image, config: VisionConfig, device: torch.device) -> Tensor:
    """Return the patches [num_tokens * merge_size ** 2, channels * frames * patch_size ** 2] fp32 of an image.

    The patches of a token follow each other. Each is [channels, frames, patch_size, patch_size].
    """
    size, merge = config.patch_size, config.merge_size
    shape = image.rows * config.token_size, image.columns * config.token_size, CHANNELS
    pixels = torch.frombuffer(bytearray(image.pixels), dtype=torch.uint8).view(shape).to(device)
    mean, std = torch.tensor(MEAN, device=device), torch.tensor(STD, device=device)
    scaled = pixels.float().mul_(1 / 255).sub_(mean).div_(std)
    patches = scaled.view(image.rows, merge, size, image.columns, merge, size, CHANNELS).permute(0, 3, 1, 4, 6, 2, 5)
    frames = patches.unsqueeze(5).expand(*patches.shape[:5], config.temporal_patch_size, size, size)
    return frames.reshape(image.num_tokens * merge**2, -1)


def patch_places(rows: int, columns: int, merge: int) -> Tensor:
    """Return the row and column [num_patches, 2] of each patch, in the order of `patches_of`."""
    row, column = torch.meshgrid(torch.arange(rows * merge), torch.arange(columns * merge), indexing="ij")
    return torch.stack(
        [each.view(rows, merge, columns, merge).transpose(1, 2).flatten() for each in (row, column)], dim=-1
    )
