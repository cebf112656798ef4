"""Where a step's new KV goes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.attention.paged_sequences import PagedSequences
from engine.batch import Batch


@dataclass(frozen=True, slots=True)
class NewTokens:
    """All of it on the device, int32."""

    sequences: Tensor  # [num_tokens] which sequence each is of
    positions: Tensor  # [num_tokens] its place there
    blocks: Tensor  # as in PagedSequences, of the whole batch
    block_starts: Tensor
    last_block_lens: Tensor

    @classmethod
    def of(cls, batch: Batch, paged: PagedSequences) -> "NewTokens":
        """Those of a batch whose sequences are all in `paged`."""
        device = batch.positions.device
        counts = torch.tensor(batch.query_lens_list)
        sequences = torch.arange(batch.num_seqs, dtype=torch.int32).repeat_interleave(counts)
        return cls(
            sequences=sequences.to(device, non_blocking=True),
            positions=batch.positions.to(torch.int32),
            blocks=paged.blocks,
            block_starts=paged.block_starts.to(device, non_blocking=True),
            last_block_lens=paged.last_block_lens.to(device, non_blocking=True),
        )
