"""Parts of recurrent layers, and those of a tensor-parallel rank.

A layer's heads are divided into as many equal parts as a block has shards, and the state of each part is in its own
shard. A rank computes the parts whose shards it has. If there are more ranks than shards, consecutive ranks compute the
same part, and each of them projects an equal share of its output.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from baton.engine.checkpoint.weights import Weights
from baton.engine.kv.layer_states import LayerStates
from baton.engine.kv.state_layout import StatePlace
from baton.engine.layers.linear import Projection, load_partial, summed
from baton.engine.parallel.tensor_parallel import ONE_RANK, TensorRanks
from baton.engine.parallel.tensor_shard import TensorShard


@dataclass(frozen=True, slots=True)
class RankParts:
    """Parts of a layer on one rank."""

    num_parts: int = 1  # of the whole layer
    tensor: TensorRanks = ONE_RANK

    @property
    def first(self) -> int:
        """The first of this rank's parts, which are consecutive."""
        return self.tensor.shard.rank * self.num_parts // self.tensor.shard.size

    @property
    def count(self) -> int:
        """Number of this rank's parts."""
        return self.tensor.shard.share(self.num_parts)

    @property
    def is_first_holder(self) -> bool:
        """Whether no rank in front of this one has the same parts."""
        shard = self.tensor.shard
        return self.num_parts > shard.size or shard.rank % (shard.size // self.num_parts) == 0

    @property
    def shards(self) -> list[TensorShard]:
        """This rank's parts, each as a shard of the whole layer."""
        return [TensorShard(part, self.num_parts) for part in range(self.first, self.first + self.count)]

    def of(self, count: int, width: int = 1) -> slice:
        """Return the slice of this rank's parts of `count` adjacent items of `width` rows or columns each."""
        shards = self.shards
        return slice(shards[0].of(count, width).start, shards[-1].of(count, width).stop)

    def states(self, place: StatePlace, shapes: Sequence[tuple[int, ...]]) -> list[LayerStates]:
        """Return the states of this rank's parts; shapes: of the tensors in each."""
        return [LayerStates(place, shapes, index, self.count) for index in range(self.count)]

    def load_output(
        self, weights: Weights, prefix: str, width: int, hidden_size: int, *, bias: bool = False
    ) -> "PartsOutput":
        """Load the projection `prefix` of all heads' outputs, which are `width` wide."""
        shard = self.tensor.shard
        columns, first = shard.of(width), self.of(width).start
        linear = load_partial(weights, prefix, width, hidden_size, columns, shard, bias=bias)
        return PartsOutput(slice(columns.start - first, columns.stop - first), summed(linear, self.tensor))


@dataclass(frozen=True, slots=True)
class PartsOutput:
    """Projection of the heads of all ranks' parts, summed over the ranks."""

    columns: slice  # those of this rank's parts that this rank projects
    projection: Projection

    def __call__(self, heads: Tensor) -> Tensor:
        """Return [num_tokens, hidden] for the outputs [num_tokens, width] of this rank's parts."""
        return self.projection(heads[:, self.columns].contiguous())


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate the columns of parts, without a copy if there is only one."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=1)
