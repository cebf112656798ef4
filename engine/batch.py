"""The tensors of one step."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """Tokens of several sequences, flattened; sequences with one new token (decodes) come first.

    Tensors are on the model's device; the plain numbers spare a backend any synchronisation.
    """

    token_ids: Tensor  # [num_tokens] int64
    positions: Tensor  # [num_tokens] int64
    slot_mapping: Tensor  # [num_tokens] int64: block id * block_size + offset where the token's KV is written
    query_starts: Tensor  # [num_seqs + 1] int64: first token of each sequence
    context_lens: Tensor  # [num_seqs] int64: tokens with KV after this step, the new ones included
    block_tables: Tensor  # [num_seqs, max_blocks] int64, padded with block 0, which holds nobody's tokens
    logits_indices: Tensor  # [num_logits] int64: tokens whose logits are needed
    query_lens_list: list[int]  # [num_seqs]
    context_lens_list: list[int]  # [num_seqs]
    num_decodes: int  # sequences with one new token, at the front

    @property
    def num_tokens(self) -> int:
        """New tokens of all sequences."""
        return int(self.token_ids.shape[0])

    @property
    def num_seqs(self) -> int:
        """Sequences in the step."""
        return len(self.query_lens_list)


NUM_SIZES = 5  # at the front of a packed batch


def pack(batch: Batch) -> Tensor:
    """All of it in one tensor of int64 on the CPU, for another process."""
    num_logits = batch.logits_indices.shape[0]
    sizes = [batch.num_tokens, batch.num_seqs, batch.block_tables.shape[1], num_logits, batch.num_decodes]
    tensors = [
        batch.token_ids,
        batch.positions,
        batch.slot_mapping,
        batch.query_starts,
        batch.context_lens,
        batch.block_tables.flatten(),
        batch.logits_indices,
    ]
    return torch.cat([torch.tensor(sizes), torch.cat(tensors).cpu()])


def unpack(numbers: Tensor, device: torch.device) -> Batch:
    """What was packed, on this device."""
    num_tokens, num_seqs, max_blocks, num_logits, num_decodes = numbers[:NUM_SIZES].tolist()
    sizes = [num_tokens] * 3 + [num_seqs + 1, num_seqs, num_seqs * max_blocks, num_logits]
    query_starts, context_lens = numbers[NUM_SIZES:].split_with_sizes(sizes)[3:5]  # on the CPU
    tensors = numbers[NUM_SIZES:].to(device, non_blocking=True).split_with_sizes(sizes)
    return Batch(
        token_ids=tensors[0],
        positions=tensors[1],
        slot_mapping=tensors[2],
        query_starts=tensors[3],
        context_lens=tensors[4],
        block_tables=tensors[5].view(num_seqs, max_blocks),
        logits_indices=tensors[6],
        query_lens_list=query_starts.diff().tolist(),
        context_lens_list=context_lens.tolist(),
        num_decodes=num_decodes,
    )
