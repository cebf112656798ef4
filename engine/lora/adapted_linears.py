"""Linear layers of a model that adapters can change."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from baton.engine.layers.linear_source import LinearSource
from baton.engine.lora.base import ModelAdapters


@dataclass(frozen=True, slots=True)
class AdaptedLinears:
    """Sources of the linear layers in the order of an adapter's matrices, and the adapters."""

    sources: Sequence[LinearSource]
    dtype: torch.dtype  # of the adapters' matrices
    adapters: ModelAdapters
