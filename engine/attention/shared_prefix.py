"""Decode attention with a shared prefix: blocks common to all decodes are read once for all of them.

Hydragen, arXiv 2402.05099, section 3. The attention to the two parts of a context is merged by their log-sum-exps
(FlashInfer, arXiv 2501.01005, section 2.2).
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from baton.engine.attention.paged_sequences import PagedSequences
from baton.engine.execution.batch import Batch
from baton.engine.execution.device import to_device_async

# Smallest saving in reads per layer. Such a step is not replayed from a CUDA graph, and launching a layer's kernels one
# by one takes an H200 about as long (150 us) as reading this much.
LEAST_SAVED_BYTES = 640 << 20


class SharedPrefixDecode:
    """Attends to the shared blocks and to the rest, and merges the two."""

    def __init__(self, prefix: Any, own: Any, merge: Any) -> None:
        """prefix: a prefill wrapper, for which all decodes together are one chunk; own: a decode wrapper."""
        self._prefix = prefix
        self._own = own
        self._merge = merge

    def plan(
        self, batch: Batch, num_shared: int, block_size: int, sizes: tuple[int, ...], types: Mapping[str, Any]
    ) -> None:
        """Plan a step; `num_shared` is the number of shared first blocks, sizes and types are the wrappers'."""
        own = PagedSequences.of(batch, block_size, num_shared).part(0, batch.num_decodes)
        self._own.plan(own.block_starts, own.blocks, own.last_block_lens, *sizes, **types)
        shared = to_device_async(batch.block_tables[0, :num_shared].to(torch.int32), batch.positions.device)
        ends = [torch.tensor([0, end], dtype=torch.int32) for end in (batch.num_decodes, num_shared)]
        last = torch.tensor([block_size], dtype=torch.int32)
        self._prefix.plan(ends[0], ends[1], shared, last, *sizes, causal=False, **types)

    def run(
        self,
        q: Tensor,
        cache: tuple[Tensor, ...],
        *,
        out: Tensor | None = None,
        return_lse: bool = False,
        **scaled: float,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return the attention of all decodes, with the parameters and results of a wrapper's `run`."""
        to_prefix, prefix_sums = self._prefix.run(q, cache, return_lse=True, **scaled)
        to_own, own_sums = self._own.run(q, cache, return_lse=True, **scaled)
        merged: tuple[Tensor, Tensor] = self._merge(to_prefix, prefix_sums, to_own, own_sums)
        if return_lse:
            return merged
        return merged[0] if out is None else out.copy_(merged[0])


def num_shared_blocks(batch: Batch, block_size: int, block_bytes: int, least_saved_bytes: int) -> int:
    """Return how many first blocks all decodes share, 0 if sharing saves too little.

    At least one token per decode is not shared. block_bytes: of a block in one layer.
    """
    num_decodes = batch.num_decodes
    if num_decodes < 2:
        return 0
    most = (min(batch.context_lens_list[:num_decodes]) - 1) // block_size
    if (num_decodes - 1) * most * block_bytes < least_saved_bytes:
        return 0
    tables = batch.block_tables[:num_decodes, :most].numpy()
    if (tables[:, 0] != tables[0, 0]).any():  # quick exit, the most frequent case
        return 0
    differs = (tables != tables[0]).any(axis=0)
    num_shared = int(differs.argmax()) if differs.any() else most
    return num_shared if (num_decodes - 1) * num_shared * block_bytes >= least_saved_bytes else 0
