"""States of a part of one recurrent layer's heads, copied from and to shards of blocks of the KV pool."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from baton.engine.execution.state_blocks import StateBlocks
from baton.engine.kv.state_layout import StatePlace


class LayerStates:
    """The place of a layer's state in the pool, and the shapes of the tensors that it consists of."""

    def __init__(
        self, place: StatePlace, shapes: Sequence[tuple[int, ...]], shard: int = 0, num_shards: int = 1
    ) -> None:
        """shard: the one that has the state, of the `num_shards` that this rank has of each block."""
        self._place = place
        self._shapes = shapes
        self._shard = shard
        self._num_shards = num_shards

    def read(self, pool: Tensor, blocks: StateBlocks) -> Tensor:
        """Return a copy of the states before a step, [num_seqs, size] float32; zeros for sequences that begin with it.

        The size includes padding at the end. pool: the whole KV pool.
        """
        wanted = blocks.sources[:, self._place.blocks]
        states = self._columns(pool).index_select(0, wanted.flatten()).view(len(wanted), -1)
        return states.index_fill_(0, blocks.new_rows, 0)

    def write(self, pool: Tensor, blocks: StateBlocks, states: Tensor) -> None:
        """Store states after a step, in the shape that `read` returns, except for sequences with drafted tokens."""
        columns, drafted = self._columns(pool), blocks.drafted
        each = (slice(drafted.start), slice(drafted.stop, None)) if drafted else (slice(None),)
        for rows in each:
            targets = blocks.targets[rows, self._place.blocks].flatten()
            columns.index_copy_(0, targets, states[rows].view(-1, columns.shape[1]))

    def tensors(self, states: Tensor) -> list[Tensor]:
        """Return views of the parts of states [num_seqs, size], each [num_seqs, *shape]."""
        sizes = [prod(shape) for shape in self._shapes]
        parts = states[:, : sum(sizes)].split_with_sizes(sizes, dim=1)
        return [part.view(len(states), *shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def _columns(self, pool: Tensor) -> Tensor:
        shards = pool.view(len(pool), self._num_shards, -1).view(torch.float32)
        return shards[:, self._shard, self._place.columns]
