"""Where a step's new KV goes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from baton.engine.attention.paged_sequences import PagedSequences
from baton.engine.execution.batch import Batch
from baton.engine.execution.device import sent


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
            sequences=sent(sequences, device),
            positions=batch.positions.to(torch.int32),
            blocks=paged.blocks,
            block_starts=sent(paged.block_starts, device),
            last_block_lens=sent(paged.last_block_lens, device),
        )
