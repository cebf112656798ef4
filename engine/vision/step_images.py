"""The image tokens of a step."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from baton.engine.request import Request
from baton.engine.scheduling.schedule import ScheduledRequest
from baton.engine.vision.embedding_cache import EmbeddingCache
from baton.engine.vision.encoder import VisionEncoder
from baton.engine.vision.image import Image, rotary_positions, saved_behind
from baton.engine.vision.image_tokens import ImageTokens

CACHE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class StepPositions:
    """Rotary positions of a step's tokens, its image tokens and their embeddings."""

    positions: Tensor  # [num_tokens] int64 on the CPU, for steps without image tokens
    images: ImageTokens | None = None  # None: the step has none
    vectors: Tensor | None = None  # [num_image_tokens, hidden] on the model's device


class StepImages:
    """Encoder of the images whose tokens a step computes, with a cache of their embeddings."""

    def __init__(self, encoder: VisionEncoder, cache_bytes: int = CACHE_BYTES) -> None:
        self.encoder = encoder
        self._cache = EmbeddingCache(cache_bytes)

    def of(self, scheduled: Sequence[ScheduledRequest], positions: Tensor) -> StepPositions:
        """Return the rotary positions of a step's tokens, and the embeddings of those of images.

        positions: [num_tokens] int64 on the CPU, indices of the tokens in their requests.
        """
        lengths = [item.num_new_tokens for item in scheduled]
        shifts = [saved_behind(item.request.images, item.start) for item in scheduled]
        text = positions.numpy() - np.repeat(shifts, lengths)
        axes = np.tile(text, (3, 1))
        rows: list[np.ndarray] = []
        vectors: list[Tensor] = []
        begin = 0
        for item, length in zip(scheduled, lengths, strict=True):
            start, end = item.start, item.start + length
            if item.request.images and start < item.request.images[-1].end:
                axes[:, begin : begin + length] = rotary_positions(item.request.images, start, end)
            for image in item.request.images:
                first, last = max(start, image.start), min(end, image.end)
                if first < last:
                    rows.append(np.arange(first, last) - start + begin)
                    vectors.append(self._embeddings(item.request, image)[first - image.start : last - image.start])
            begin += length
        plain = torch.from_numpy(axes[0].copy())
        if not rows:
            return StepPositions(plain)
        images = ImageTokens(torch.from_numpy(np.concatenate(rows)), torch.from_numpy(axes))
        return StepPositions(plain, images, torch.cat(vectors))

    def _embeddings(self, request: Request, image: Image) -> Tensor:
        return self._cache.get((request.cache_salt, image.digest), lambda: self.encoder.encode(image))
