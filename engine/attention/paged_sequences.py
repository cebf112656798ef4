"""A step's sequences in CSR form, for kernels without padding."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from baton.engine.attention.span import FULL, AttentionSpan
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
    def of(cls, batch: Batch, block_size: int, num_skipped: int = 0, span: AttentionSpan = FULL) -> "PagedSequences":
        """Return all sequences of the batch, in order; the first `num_skipped` blocks of decodes are left out.

        Blocks in front of the span of a sequence's first new token are left out, too. A sequence whose new tokens are
        in several chunks of the span becomes one sequence per chunk; a chunk must be a whole number of blocks.
        """
        seqs, query_lens, context_lens = _pieces(batch, span)
        first_blocks = np.where(seqs < batch.num_decodes, num_skipped, 0)
        if span.size is not None:
            firsts = [span.first(position) // block_size for position in (context_lens - query_lens).tolist()]
            first_blocks = np.maximum(first_blocks, firsts)
        num_blocks = (context_lens + block_size - 1) // block_size - first_blocks
        context_lens = (context_lens - first_blocks * block_size).astype(np.int32)
        tables, places = batch.block_tables.numpy()[seqs], np.arange(batch.block_tables.shape[1])
        is_used = (places >= first_blocks[:, None]) & (places < (first_blocks + num_blocks)[:, None])
        return cls(
            query_starts=torch.from_numpy(starts(query_lens)),
            block_starts=torch.from_numpy(starts(num_blocks)),
            blocks=to_device_async(torch.from_numpy(tables[is_used].astype(np.int32)), batch.positions.device),
            context_lens=torch.from_numpy(context_lens),
            last_block_lens=torch.from_numpy((context_lens - 1) % block_size + 1),
        )

    @property
    def num_seqs(self) -> int:
        """Number of sequences."""
        return len(self.context_lens)

    @property
    def tables(self) -> tuple[Tensor, Tensor, Tensor]:
        """The block tables, as FlashInfer's wrappers take them."""
        return self.block_starts, self.blocks, self.last_block_lens

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


def _pieces(batch: Batch, span: AttentionSpan) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return index, number of new tokens and context length of each sequence, or of its part in each chunk."""
    query_lens, context_lens = np.array(batch.query_lens_list), np.array(batch.context_lens_list)
    if span.size is None or not span.is_chunked:
        return np.arange(batch.num_seqs), query_lens, context_lens
    pieces = []
    for seq, (query_len, context_len) in enumerate(zip(query_lens.tolist(), context_lens.tolist(), strict=True)):
        position = context_len - query_len
        while position < context_len:
            end = min((position // span.size + 1) * span.size, context_len)
            pieces.append((seq, end - position, end))
            position = end
    seqs, query_lens, context_lens = np.array(pieces).T
    return seqs, query_lens, context_lens


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
