"""A step's sequences in CSR form, for kernels without padding."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from baton.engine.execution.batch import Batch
from baton.engine.execution.device import to_device_async


@dataclass(frozen=True, slots=True)
class PagedSequences:
    """Concatenated block tables (CSR), all int32; the tensors needed for planning are on the CPU.

    Built without waiting for the device.
    """

    query_starts: Tensor  # [num_seqs + 1] on the CPU: first new token of each sequence, counted from the first one's
    block_starts: Tensor  # [num_seqs + 1] on the CPU: first of each sequence's blocks
    blocks: Tensor  # [all blocks] on the device
    context_lens: Tensor  # [num_seqs] on the CPU
    last_block_lens: Tensor  # [num_seqs] on the CPU: tokens in the last block

    @classmethod
    def of(cls, batch: Batch, block_size: int, num_skipped: int = 0) -> "PagedSequences":
        """Return all sequences of the batch, in order; the first `num_skipped` blocks of decodes are left out."""
        query_lens = np.array(batch.query_lens_list, dtype=np.int32)
        context_lens = np.array(batch.context_lens_list, dtype=np.int32)
        first_blocks = np.where(np.arange(batch.num_seqs) < batch.num_decodes, num_skipped, 0).astype(np.int32)
        context_lens -= first_blocks * block_size
        num_blocks = (context_lens + block_size - 1) // block_size
        block_starts = starts(num_blocks)
        tables, places = batch.block_tables.numpy(), np.arange(batch.block_tables.shape[1])
        firsts, ends = first_blocks[:, None], (first_blocks + num_blocks)[:, None]
        blocks = torch.from_numpy(tables[(places >= firsts) & (places < ends)].astype(np.int32))
        return cls(
            query_starts=torch.from_numpy(starts(query_lens)),
            block_starts=torch.from_numpy(block_starts),
            blocks=to_device_async(blocks, batch.positions.device),
            context_lens=torch.from_numpy(context_lens),
            last_block_lens=torch.from_numpy((context_lens - 1) % block_size + 1),
        )

    def part(self, first: int, end: int) -> "PagedSequences":
        """Return the sequences from `first` up to, excluding, `end`: views, except the starts, rebased to 0."""
        query_starts, block_starts = self.query_starts[first : end + 1], self.block_starts[first : end + 1]
        return PagedSequences(
            query_starts=query_starts - query_starts[0],
            block_starts=block_starts - block_starts[0],
            blocks=self.blocks[int(block_starts[0]) : int(block_starts[-1])],
            context_lens=self.context_lens[first:end],
            last_block_lens=self.last_block_lens[first:end],
        )


def starts(counts: np.ndarray) -> np.ndarray:
    """Return the start of each run and the end of the last one, [len(counts) + 1] int32."""
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int32)


@dataclass(frozen=True, slots=True)
class NewTokens:
    """New tokens of a step and their sequences' blocks; all int32, on the device."""

    sequences: Tensor  # [num_tokens] sequence of each token
    positions: Tensor  # [num_tokens] position in its sequence
    blocks: Tensor  # as in PagedSequences, for the whole batch
    block_starts: Tensor
    last_block_lens: Tensor

    @classmethod
    def of(cls, batch: Batch, paged: PagedSequences) -> "NewTokens":
        """Return the new tokens of a batch whose sequences are all in `paged`."""
        device = batch.positions.device
        counts = torch.tensor(batch.query_lens_list)
        sequences = torch.arange(batch.num_seqs, dtype=torch.int32).repeat_interleave(counts)
        return cls(
            sequences=to_device_async(sequences, device),
            positions=batch.positions.to(torch.int32),
            blocks=paged.blocks,
            block_starts=to_device_async(paged.block_starts, device),
            last_block_lens=to_device_async(paged.last_block_lens, device),
        )
