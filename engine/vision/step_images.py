"""The image tokens of a step."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from baton.engine.execution.device import to_device_async
from baton.engine.request import Request
from baton.engine.scheduling.schedule import ScheduledRequest
from baton.engine.vision.embedding_cache import EmbeddingCache
from baton.engine.vision.encoder import VisionEncoder
from baton.engine.vision.image import Image, rotary_positions
from baton.engine.vision.image_tokens import ImageTokens

CACHE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class StepPositions:
    """Rotary positions of a step's tokens, and its image tokens."""

    positions: Tensor  # [num_tokens] int64 on the CPU, for steps without image tokens
    images: ImageTokens | None  # None: the step has none


class StepImages:
    """Encoder of the images whose tokens a step computes, with a cache of their embeddings."""

    def __init__(self, encoder: VisionEncoder, cache_bytes: int = CACHE_BYTES) -> None:
        self.encoder = encoder
        self._cache = EmbeddingCache(cache_bytes)

    def of(self, scheduled: Sequence[ScheduledRequest], device: torch.device) -> StepPositions:
        """Return the positions of a step's tokens, and the embeddings of those of images on `device`."""
        ranges = [range(item.start, item.start + item.num_new_tokens) for item in scheduled]
        positions = np.concatenate(
            [
                rotary_positions(item.request.images, each.start, each.stop)
                for item, each in zip(scheduled, ranges, strict=True)
            ],
            axis=1,
        )
        rows: list[np.ndarray] = []
        vectors: list[Tensor] = []
        start = 0
        for item, each in zip(scheduled, ranges, strict=True):
            for image in item.request.images:
                first, last = max(each.start, image.start), min(each.stop, image.end)
                if first < last:
                    rows.append(np.arange(first, last) - each.start + start)
                    vectors.append(self._embeddings(item.request, image)[first - image.start : last - image.start])
            start += len(each)
        images = None
        if rows:
            places = to_device_async(torch.from_numpy(np.concatenate(rows)), device)
            axes = to_device_async(torch.from_numpy(positions), device)
            images = ImageTokens(places, torch.cat(vectors), axes)
        return StepPositions(torch.from_numpy(positions[0].copy()), images)

    def _embeddings(self, request: Request, image: Image) -> Tensor:
        return self._cache.get((request.cache_salt, image.digest), lambda: self.encoder.encode(image))
