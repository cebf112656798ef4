"""Blocks of the recurrent states of a step's sequences, and the order in which their tokens change them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from baton.engine.execution.device import to_device_async

NONE = range(0)


@dataclass(frozen=True, slots=True)
class StateBlocks:
    """Blocks of the recurrent state of a batch's sequences before and after a step."""

    sources: Tensor  # [num_seqs, num_state_blocks] int64
    targets: Tensor  # the same; equal to `sources` if the state is updated in place
    new_rows: Tensor  # [num_new] int64: sequences that begin with this step; their state is zero, whatever sources hold
    # [num_cleared] int64: blocks of KV that begin with this step, and are cleared first. They may have held states,
    # which are perhaps not finite if they are read as KV, and attention multiplies unused slots by zero.
    cleared: Tensor
    drafted: range = NONE  # sequences with drafted tokens, behind the decodes: the step does not write their states

    def on(self, device: torch.device) -> "StateBlocks":
        """Return the blocks on `device`, copied asynchronously in a single transfer."""
        num_seqs, num_blocks = self.sources.shape
        numbers = to_device_async(self.joined(), device)
        return self.split(numbers, num_seqs, num_blocks, len(self.new_rows), self.drafted)

    def of_rows(self, rows: Sequence[int]) -> "StateBlocks":
        """Return the blocks of some sequences, whose states are written; none is cleared again. On the CPU."""
        wanted, new = torch.tensor(rows), set(self.new_rows.tolist())
        new_rows = [place for place, row in enumerate(rows) if row in new]
        return StateBlocks(
            self.sources[wanted],
            self.targets[wanted],
            torch.tensor(new_rows, dtype=torch.int64),
            self.cleared.new_empty(0),
        )

    def clear(self, pool: Tensor) -> None:
        """Clear the blocks `cleared` of a pool."""
        if len(self.cleared):
            pool.view(torch.uint8).index_fill_(0, self.cleared, 0)

    def joined(self) -> Tensor:
        """Return all numbers in one tensor."""
        return torch.cat([self.sources.flatten(), self.targets.flatten(), self.new_rows, self.cleared])

    @staticmethod
    def split(numbers: Tensor, num_seqs: int, num_blocks: int, num_new: int, drafted: range = NONE) -> "StateBlocks":
        """Return the blocks that `joined` made one tensor."""
        count = num_seqs * num_blocks
        sizes = [count, count, num_new, len(numbers) - 2 * count - num_new]
        sources, targets, new_rows, cleared = numbers.split_with_sizes(sizes)
        return StateBlocks(sources.view(num_seqs, -1), targets.view(num_seqs, -1), new_rows, cleared, drafted)


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive sequences with the same number of new tokens."""

    rows: slice
    length: int
    # The tokens change the states one by one, those of all sequences at once. So the states after a draft have the bits
    # that they would have after as many steps. Otherwise it is one sequence, whose tokens are computed in chunks.
    is_stepwise: bool = True

    @property
    def num_tokens(self) -> int:
        """Number of new tokens of all its sequences."""
        return len(range(self.rows.stop)[self.rows]) * self.length

    def by_place(self, tokens: Tensor) -> Tensor:
        """Return tokens [num_tokens, ...] as [length, num_seqs, ...], contiguous."""
        return tokens.view(-1, self.length, *tokens.shape[1:]).transpose(0, 1).contiguous()

    @staticmethod
    def in_order(outputs: Sequence[Tensor]) -> Tensor:
        """Return the outputs of each place, [num_seqs, ...], in the order of the tokens: [num_tokens, ...]."""
        return outputs[0] if len(outputs) == 1 else torch.stack(list(outputs), dim=1).flatten(0, 1)


def stepwise_runs(lengths: Sequence[int]) -> list[Run]:
    """Return the runs of sequences with these numbers of new tokens."""
    runs, end = [], 0
    for length, each in groupby(lengths):
        start, end = end, end + len(list(each))
        runs.append(Run(slice(start, end), length))
    return runs
