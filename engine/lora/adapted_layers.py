"""Layers of a model that adapters can change."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from baton.engine.layers.linear_source import LinearSource
from baton.engine.lora.adapter_files import AdaptedModel
from baton.engine.lora.base import ModelAdapters
from baton.engine.lora.dora import DoraFactors


@dataclass(frozen=True, slots=True)
class AdaptedLayers:
    """Sources of the layers in the order of an adapter's matrices, and the adapters."""

    sources: Sequence[LinearSource]
    model: AdaptedModel
    dora: DoraFactors
    dtype: torch.dtype  # of the adapters' matrices
    adapters: ModelAdapters
    paired_head_dim: int | None = None  # of a checkpoint that needs `with_adjacent_pairs`
