"""The tensors of one step."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from baton.engine.execution.device import to_device_async


@dataclass(frozen=True, slots=True)
class Batch:
    """Tokens of several sequences, flattened; sequences with one new token (decodes) come first.

    Made on the CPU. `on` has it where the model is, but for the block tables: with them, as with the plain numbers, a
    step is planned, and nothing waits for the device.
    """

    token_ids: Tensor  # [num_tokens] int64
    positions: Tensor  # [num_tokens] int64
    slot_mapping: Tensor  # [num_tokens] int64: block id * block_size + offset where the token's KV is written
    query_starts: Tensor  # [num_seqs + 1] int64: first token of each sequence
    context_lens: Tensor  # [num_seqs] int64: tokens with KV after this step, the new ones included
    block_tables: Tensor  # [num_seqs, max_blocks] int64 on the CPU, padded with block 0, which holds nobody's tokens
    logits_indices: Tensor  # [num_logits] int64: tokens whose logits are needed
    query_lens_list: list[int]  # [num_seqs]
    context_lens_list: list[int]  # [num_seqs]
    num_decodes: int  # sequences with one new token, at the front
    is_replayed: bool = False  # its tensors stay where they are from step to step
    sampled_ids: Tensor | None = None  # on the device, in place of token_ids, which the host does not know yet

    @property
    def num_tokens(self) -> int:
        """New tokens of all sequences."""
        return int(self.token_ids.shape[0])

    @property
    def num_seqs(self) -> int:
        """Sequences in the step."""
        return len(self.query_lens_list)

    def on(self, device: torch.device) -> "Batch":
        """The same on this device, copied at once and without waiting for it."""
        if device.type == "cpu" and self.sampled_ids is None:
            return self
        tensors = self.device_tensors()
        if device.type != "cpu":
            tensors = to_device_async(torch.cat(tensors), device).split_with_sizes([len(tensor) for tensor in tensors])
        if self.sampled_ids is not None:
            tensors = (self.sampled_ids, *tensors[1:])
        return self.with_tensors(tensors)

    def device_tensors(self) -> tuple[Tensor, ...]:
        """What a model reads on its device."""
        return (
            self.token_ids,
            self.positions,
            self.slot_mapping,
            self.query_starts,
            self.context_lens,
            self.logits_indices,
        )

    def with_tensors(self, tensors: Sequence[Tensor], is_replayed: bool = False) -> "Batch":
        """The same with others in place of those of `device_tensors`."""
        token_ids, positions, slot_mapping, query_starts, context_lens, logits_indices = tensors
        return replace(
            self,
            token_ids=token_ids,
            positions=positions,
            slot_mapping=slot_mapping,
            query_starts=query_starts,
            context_lens=context_lens,
            logits_indices=logits_indices,
            is_replayed=is_replayed,
        )


NUM_SIZES = 5  # at the front of a packed batch


def pack(batch: Batch) -> Tensor:
    """All of it, as it was made, in one tensor of int64, for another process."""
    num_logits = batch.logits_indices.shape[0]
    sizes = [batch.num_tokens, batch.num_seqs, batch.block_tables.shape[1], num_logits, batch.num_decodes]
    return torch.cat([torch.tensor(sizes), *batch.device_tensors(), batch.block_tables.flatten()])


def unpack(numbers: Tensor) -> Batch:
    """What was packed."""
    num_tokens, num_seqs, max_blocks, num_logits, num_decodes = numbers[:NUM_SIZES].tolist()
    sizes = [num_tokens] * 3 + [num_seqs + 1, num_seqs, num_logits, num_seqs * max_blocks]
    tensors = numbers[NUM_SIZES:].split_with_sizes(sizes)
    return Batch(
        token_ids=tensors[0],
        positions=tensors[1],
        slot_mapping=tensors[2],
        query_starts=tensors[3],
        context_lens=tensors[4],
        logits_indices=tensors[5],
        block_tables=tensors[6].view(num_seqs, max_blocks),
        query_lens_list=tensors[3].diff().tolist(),
        context_lens_list=tensors[4].tolist(),
        num_decodes=num_decodes,
    )
