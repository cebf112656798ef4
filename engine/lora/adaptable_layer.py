"""A layer that adapters can change."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from baton.engine.layers.embedding import Embedding
from baton.engine.layers.expert_routing import ExpertChoice
from baton.engine.layers.head_linear import HeadLinear
from baton.engine.layers.linear import Linear
from baton.engine.layers.linear_source import LinearSource
from baton.engine.layers.moe import MoE, SharedGate


class Inputs(Enum):
    """Inputs of a layer."""

    # [num_tokens, in_features], of an expert the rows of its tokens, or [num_tokens, num_heads, in_features]
    STATES = "states"
    LAST_STATES = "last_states"  # [num_logits, in_features], of the tokens whose logits are wanted
    TOKEN_IDS = "token_ids"  # [num_tokens], which select rows, as if they were products with unit vectors


@dataclass(frozen=True, slots=True)
class AdaptableLayer:
    """A layer to whose output adapters add, and what it computes of the checkpoint."""

    layer: Linear | HeadLinear | Embedding | ExpertChoice | SharedGate
    source: LinearSource
    inputs: Inputs = Inputs.STATES

    @property
    def bias(self) -> Tensor | None:
        """The bias in the layer's output."""
        return self.layer.bias if isinstance(self.layer, Linear) else None

    @property
    def device(self) -> torch.device:
        """Device of the layer."""
        return self.layer.device if isinstance(self.layer, Embedding) else self.layer.weight.device


@dataclass(frozen=True, slots=True)
class AdaptableExperts:
    """The routed experts of a layer on this rank, which adapters can change."""

    moe: MoE
    gate_up: Sequence[AdaptableLayer]  # of each slot
    down: Sequence[AdaptableLayer]
    places: range  # among an adapter's matrices: the two products of the first slot, then those of the next one

    @classmethod
    def of(cls, moe: MoE, first: int) -> "AdaptableExperts":
        """Return the experts of a mixture. first: place of the first one's first product."""
        source = moe.source
        assert source is not None, "they were not read from a checkpoint"
        assert source.here is not None, "several workers share the experts"
        pairs = list(zip(moe.experts.slots, map(source.linears, source.here), strict=True))
        gate_up = [AdaptableLayer(expert.gate_up, first) for expert, (first, _) in pairs]
        down = [AdaptableLayer(expert.down, second) for expert, (_, second) in pairs]
        return cls(moe, gate_up, down, range(first, first + 2 * len(pairs)))

    @property
    def layers(self) -> list[AdaptableLayer]:
        """The products in the order of `places`."""
        return [each for pair in zip(self.gate_up, self.down, strict=True) for each in pair]
