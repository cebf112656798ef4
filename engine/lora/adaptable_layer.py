"""A layer that adapters can change."""

from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from baton.engine.layers.embedding import Embedding
from baton.engine.layers.linear import Linear
from baton.engine.layers.linear_source import LinearSource


class Inputs(Enum):
    """Inputs of a layer."""

    STATES = "states"  # [num_tokens, in_features]
    LAST_STATES = "last_states"  # [num_logits, in_features], of the tokens whose logits are wanted
    TOKEN_IDS = "token_ids"  # [num_tokens], which select rows, as if they were products with unit vectors


@dataclass(frozen=True, slots=True)
class AdaptableLayer:
    """A layer to whose output adapters add, and what it computes of the checkpoint."""

    layer: Linear | Embedding
    source: LinearSource
    inputs: Inputs = Inputs.STATES

    @property
    def bias(self) -> Tensor | None:
        """The bias in the layer's output."""
        return self.layer.bias if isinstance(self.layer, Linear) else None

    @property
    def device(self) -> torch.device:
        """Device of the layer."""
        return self.layer.weight.device if isinstance(self.layer, Linear) else self.layer.device
