"""Recurrent states of sequences with drafted tokens, which cannot take tokens back.

1. A step computes the drafted tokens on copies of the states, and leaves the states as they were. Each recurrent layer
   records what its rule reads of these tokens: far less than a state.
2. Once the sampled tokens are known, the same rule advances the states by the tokens that were right, and no others.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from baton.engine.execution.device import to_device_async
from baton.engine.execution.state_blocks import Run, StateBlocks, stepwise_runs

# Rule of a recurrent layer. From its inputs, each [num_tokens, ...], their runs, the pool and the blocks of the states
# to the outputs [num_tokens, ...]; reads the states and writes those that are not drafted.
Advance = Callable[[Sequence[Tensor], Sequence[Run], Tensor, StateBlocks], Tensor]


class DraftedStates:
    """The sequences with drafted tokens of one step, and the inputs of all recurrent layers for them."""

    def __init__(self, blocks: StateBlocks, query_lens: Sequence[int], pool: Tensor) -> None:
        """blocks: of all sequences of the step, on the CPU; query_lens: their numbers of new tokens."""
        self._blocks = blocks
        self._pool = pool
        self._first = sum(query_lens[: blocks.drafted.start])  # token of the step
        self._lengths = query_lens[blocks.drafted.start : blocks.drafted.stop]
        self._recorded: list[tuple[Advance, list[Tensor]]] = []

    def record(self, advance: Advance, inputs: Sequence[Tensor]) -> None:
        """Keep copies of what a layer's rule reads of the drafted sequences' tokens. inputs: of the whole step."""
        tokens = slice(self._first, self._first + sum(self._lengths))
        self._recorded.append((advance, [each[tokens].clone() for each in inputs]))

    def accept(self, counts: Sequence[int]) -> None:
        """Advance the state of each sequence by the first `counts` of its new tokens; 0 leaves it as it is."""
        assert len(counts) == len(self._lengths)
        rows = sorted((row for row, count in enumerate(counts) if count), key=lambda row: counts[row])
        if not rows:
            return
        starts = [sum(self._lengths[:row]) for row in range(len(counts))]
        tokens = [starts[row] + place for row in rows for place in range(counts[row])]
        runs = stepwise_runs([counts[row] for row in rows])
        device, first = self._pool.device, self._blocks.drafted.start
        blocks = self._blocks.of_rows([first + row for row in rows]).on(device)
        wanted = to_device_async(torch.tensor(tokens), device)
        for advance, inputs in self._recorded:
            advance([each.index_select(0, wanted) for each in inputs], runs, self._pool, blocks)
