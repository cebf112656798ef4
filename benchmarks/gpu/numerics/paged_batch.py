"""Batches of sequences in scattered blocks, as in a fragmented pool."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from baton.engine.execution.batch import Batch


@dataclass(frozen=True, slots=True)
class Lengths:
    """Number of a sequence's new tokens, and its total length with them."""

    new: int
    context: int


def num_blocks_of(sequences: Sequence[Lengths], block_size: int) -> int:
    """Return the blocks of a pool for all sequences, including the unused null block."""
    return 1 + sum(-(-each.context // block_size) for each in sequences)


def make_batch(sequences: Sequence[Lengths], block_size: int, seed: int) -> Batch:
    """Return a batch of the sequences, decodes first, in scattered blocks."""
    ordered = sorted(sequences, key=lambda each: each.new > 1)
    rng = random.Random(seed)
    num_blocks = num_blocks_of(ordered, block_size)
    free = rng.sample(range(1, num_blocks), num_blocks - 1)
    tables = [[free.pop() for _ in range(-(-each.context // block_size))] for each in ordered]
    return batch_of(ordered, tables, [0] * sum(each.new for each in ordered), block_size)


def batch_of(
    sequences: Sequence[Lengths], tables: Sequence[Sequence[int]], token_ids: Sequence[int], block_size: int
) -> Batch:
    """Return a batch of the sequences, decodes first, in the given blocks, with logits for the last token of each."""
    longest = max(map(len, tables))
    positions = [torch.arange(each.context - each.new, each.context) for each in sequences]
    slots = [
        torch.tensor(table)[places // block_size] * block_size + places % block_size
        for table, places in zip(tables, positions, strict=True)
    ]
    starts = torch.tensor([0, *(each.new for each in sequences)]).cumsum(0)
    return Batch(
        token_ids=torch.tensor(token_ids),
        positions=torch.cat(positions),
        slot_mapping=torch.cat(slots),
        query_starts=starts,
        context_lens=torch.tensor([each.context for each in sequences]),
        block_tables=torch.tensor([[*table, *[0] * (longest - len(table))] for table in tables]),
        logits_indices=(starts[1:] - 1),
        query_lens_list=[each.new for each in sequences],
        context_lens_list=[each.context for each in sequences],
        num_decodes=sum(each.new == 1 for each in sequences),
    )
