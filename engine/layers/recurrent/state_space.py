"""The selective state space of Mamba-2 (arXiv 2405.21060): a matrix per head that forgets, and adds a token's values.

With decay `a`, a token with values `x`, and `B` and `C` of its group, changes the state `S` [state_dim, head_dim] of a
head: `S = a * S + B^T x`. Its output is `C S`. The heads of a group share `B` and `C`, so their states are one matrix
[state_dim, heads * head_dim], with one product to write and one to read it. All tensors are float32.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from baton.engine.execution.device import to_device_async
from baton.engine.execution.state_blocks import Run

CHUNK = 64  # tokens whose outputs are computed at once


@dataclass(frozen=True, slots=True)
class SpaceInputs:
    """Inputs of consecutive tokens."""

    x: Tensor  # [num_tokens, num_groups, heads_per_group, head_dim]: values, times the tokens' steps
    b: Tensor  # [num_tokens, num_groups, state_dim]
    c: Tensor  # the same
    decay: Tensor  # [num_tokens, num_groups, heads_per_group]: logarithms, at most 0

    def split(self, num_tokens: int) -> "tuple[SpaceInputs, SpaceInputs]":
        """Return the first `num_tokens` tokens, and the others."""
        parts = (self.x, self.b, self.c, self.decay)
        return SpaceInputs(*(each[:num_tokens] for each in parts)), SpaceInputs(*(each[num_tokens:] for each in parts))

    def by_place(self, run: Run) -> "list[SpaceInputs]":
        """Return the inputs of one token for each sequence of a run, for each of their places."""
        parts = (self.x, self.b, self.c, self.decay)
        return [SpaceInputs(*each) for each in zip(*map(run.by_place, parts), strict=True)]


def step_space(inputs: SpaceInputs, state: Tensor) -> Tensor:
    """Return the outputs of one token for each sequence, in the shape of x; updates `state` in place.

    state: [num_seqs, num_groups, state_dim, heads_per_group * head_dim].
    """
    x = inputs.x
    _by_head(state, x).mul_(inputs.decay.exp()[:, :, None, :, None])
    state.addcmul_(inputs.b.unsqueeze(-1), x.flatten(2).unsqueeze(-2))
    return (inputs.c.unsqueeze(-2) @ state).view(x.shape)


def scan_space(inputs: SpaceInputs, lengths: Sequence[int], state: Tensor) -> Tensor:
    """Return the outputs of several sequences' tokens, in the shape of x; updates `state` in place.

    lengths: tokens of each sequence, which follow each other; state: as in `step_space`. The outputs of a chunk's
    tokens are products of matrices (section 6): within chunks for all of them at once, from chunk to chunk in turn. The
    last chunk of each sequence is filled with tokens that change nothing.
    """
    counts = [-(-length // CHUNK) for length in lengths]  # chunks of each sequence
    slots = to_device_async(_slots(lengths, counts), state.device)
    chunks = SpaceInputs(
        *(_in_chunks(each, slots, sum(counts)) for each in (inputs.x, inputs.b, inputs.c, inputs.decay))
    )
    total = chunks.decay.double().cumsum(1)  # differences of large sums would lose digits in float32
    outputs = _within(chunks, total)
    since_start, until_end = total.float().exp(), (total[:, -1:] - total).float().exp()
    owners = [row for row, count in enumerate(counts) for _ in range(count)]
    c, b = chunks.c.transpose(1, 2), chunks.b.permute(0, 2, 3, 1)  # both [num_chunks, num_groups, ...]
    written = (chunks.x * until_end.unsqueeze(-1)).flatten(3).transpose(1, 2)
    for chunk, row in enumerate(owners):
        matrix, kept = state[row], since_start[chunk, -1, :, None, :, None]
        read = _by_head((c[chunk] @ matrix).transpose(0, 1), chunks.x)
        outputs[chunk].addcmul_(read, since_start[chunk].unsqueeze(-1))
        _by_head(matrix, chunks.x).mul_(kept)
        matrix.baddbmm_(b[chunk], written[chunk])
    return outputs.flatten(0, 1).index_select(0, slots)


def _within(chunks: SpaceInputs, total: Tensor) -> Tensor:
    """Return the outputs [num_chunks, CHUNK, num_groups, heads_per_group, head_dim] that tokens of a chunk get from it.

    total: sums of the decays since the start of each chunk, in float64.
    """
    sums = total.permute(0, 2, 3, 1)  # [num_chunks, num_groups, heads_per_group, CHUNK]
    between = (sums.unsqueeze(-1) - sums.unsqueeze(-2)).float()  # decay from each earlier token on
    later = torch.full((CHUNK, CHUNK), float("-inf"), device=total.device).triu_(1)
    between.add_(later).exp_()
    scores = chunks.c.transpose(1, 2) @ chunks.b.permute(0, 2, 3, 1)  # [num_chunks, num_groups, CHUNK, CHUNK]
    between.mul_(scores.unsqueeze(2))
    return (between @ chunks.x.permute(0, 2, 3, 1, 4)).permute(0, 3, 1, 2, 4).contiguous()


def _by_head(states: Tensor, x: Tensor) -> Tensor:
    """Return a view of [..., heads_per_group * head_dim] with the last two dimensions of x in place of the last one."""
    return states.view(*states.shape[:-1], *x.shape[-2:])


def _slots(lengths: Sequence[int], counts: Sequence[int]) -> Tensor:
    """Return the place of each token in the chunks."""
    starts = [CHUNK * sum(counts[:row]) for row in range(len(counts))]
    return torch.cat([torch.arange(start, start + length) for start, length in zip(starts, lengths, strict=True)])


def _in_chunks(tokens: Tensor, slots: Tensor, num_chunks: int) -> Tensor:
    """Return tokens [num_tokens, ...] in their places of [num_chunks, CHUNK, ...]; zeros elsewhere."""
    filled = tokens.new_zeros(num_chunks * CHUNK, *tokens.shape[1:])
    return filled.index_copy_(0, slots, tokens).view(num_chunks, CHUNK, *tokens.shape[1:])
