"""The tensors of one step."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from baton.engine.execution.device import to_device_async
from baton.engine.execution.drafted_states import Advance, DraftedStates
from baton.engine.execution.state_blocks import Run, StateBlocks, stepwise_runs
from baton.engine.vision.image_tokens import ImageTokens


@dataclass(frozen=True, slots=True)
class GroupBlocks:
    """Slots and blocks of a batch in one KV group; on the CPU."""

    slot_mapping: Tensor  # [num_tokens] int64
    block_tables: Tensor  # [num_seqs, max_blocks] int64


@dataclass(frozen=True, slots=True)
class AdapterRun:
    """Adjacent new tokens of one sequence with the same LoRA matrices."""

    number: int  # of the matrices; 0: none
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Flattened tokens of several sequences; sequences with one new token (decodes) come first.

    Built on the CPU. `on` copies it to the model's device, except for the block tables and other groups' slots: these
    and the lists are used to plan a step on the host, without waiting for the device.
    """

    token_ids: Tensor  # [num_tokens] int64
    positions: Tensor  # [num_tokens] int64
    slot_mapping: Tensor  # [num_tokens] int64: block id * block_size + offset where the token's KV is written
    query_starts: Tensor  # [num_seqs + 1] int64: first token of each sequence
    context_lens: Tensor  # [num_seqs] int64: tokens with KV after this step, the new ones included
    block_tables: Tensor  # [num_seqs, max_blocks] int64 on the CPU, padded with the null block
    logits_indices: Tensor  # [num_logits] int64: tokens whose logits are needed
    query_lens_list: list[int]  # [num_seqs]
    context_lens_list: list[int]  # [num_seqs]
    num_decodes: int  # sequences with one new token, at the front
    is_replayed: bool = False  # its tensors are reused in place at every step (CUDA graph replay)
    pooled: tuple[range, ...] = ()  # tokens whose final hidden states are summed, by sum; not sent to other ranks
    sampled_ids: Tensor | None = None  # on the device; replaces token_ids while the host does not know them yet
    # [num_tokens] int64: positions in the rotary embedding, if images make them differ from `positions`
    rotary_positions: Tensor | None = None
    images: ImageTokens | None = None  # None: the step has no image tokens
    # [num_image_tokens, hidden] on the model's device: embeddings of image tokens. Sent to other ranks on its own.
    image_vectors: Tensor | None = None
    other_groups: tuple[GroupBlocks, ...] = ()  # `slot_mapping` and `block_tables` are those of the first KV group
    adapters: tuple[AdapterRun, ...] = ()  # of all tokens, in order; empty: no token has one
    states: StateBlocks | None = None  # of recurrent layers; None: the model has none
    # Where recurrent layers record the inputs of drafted tokens; None: there are none. Not sent to other ranks.
    drafted: DraftedStates | None = None
    keeps_states: bool = True  # hidden states of its tokens, if a draft head reads them; not sent to other ranks

    @property
    def num_tokens(self) -> int:
        """Number of new tokens of all sequences."""
        return int(self.token_ids.shape[0])

    @property
    def num_seqs(self) -> int:
        """Number of sequences in the step."""
        return len(self.query_lens_list)

    def advance_states(self, advance: Advance, inputs: Sequence[Tensor], pool: Tensor) -> Tensor:
        """Return the outputs of a recurrent layer's rule, which advances the states of sequences without drafts."""
        assert self.states is not None, "the batch of a recurrent model has the blocks of its states"
        if self.drafted is not None:
            self.drafted.record(advance, inputs)
        end = max(self.num_decodes, self.states.drafted.stop)
        runs = stepwise_runs(self.query_lens_list[:end])
        runs += [Run(slice(row, row + 1), self.query_lens_list[row], False) for row in range(end, self.num_seqs)]
        return advance(inputs, runs, pool, self.states)

    def of_group(self, group: int) -> "Batch":
        """Return the batch with the slots and block tables of a KV group."""
        if group == 0:
            return self
        other = self.other_groups[group - 1]
        return replace(self, slot_mapping=other.slot_mapping, block_tables=other.block_tables)

    def on(self, device: torch.device) -> "Batch":
        """Return the batch on `device`, copied asynchronously in one transfer, and one each for images and states."""
        if device.type == "cpu" and self.sampled_ids is None:
            return self
        tensors = self.device_tensors()
        if device.type != "cpu":
            tensors = to_device_async(torch.cat(tensors), device).split_with_sizes([len(tensor) for tensor in tensors])
        if self.sampled_ids is not None:
            tensors = (self.sampled_ids, *tensors[1:])
        batch = self.with_tensors(tensors)
        if device.type == "cpu":
            return batch
        images = self.images.on(device) if self.images is not None else None
        return replace(batch, images=images, states=self.states.on(device) if self.states is not None else None)

    def device_tensors(self) -> tuple[Tensor, ...]:
        """Return the tensors that a model reads on its device."""
        return (
            self.token_ids,
            self.positions,
            self.slot_mapping,
            self.query_starts,
            self.context_lens,
            self.logits_indices,
            *(() if self.rotary_positions is None else (self.rotary_positions,)),
        )

    def with_tensors(self, tensors: Sequence[Tensor], is_replayed: bool = False) -> "Batch":
        """Return a copy with `tensors` in place of those of `device_tensors`, in the same order."""
        token_ids, positions, slot_mapping, query_starts, context_lens, logits_indices, *more = tensors
        return replace(
            self,
            token_ids=token_ids,
            positions=positions,
            slot_mapping=slot_mapping,
            query_starts=query_starts,
            context_lens=context_lens,
            logits_indices=logits_indices,
            is_replayed=is_replayed,
            rotary_positions=more[0] if more else None,
        )


@dataclass(frozen=True, slots=True)
class PooledOutput:
    """Output of a step with pooled requests."""

    logits: Tensor  # [num_logits, vocab] fp32
    sums: Tensor  # [len(batch.pooled), hidden] float64: of the hidden states after the final norm


NUM_SIZES = 13  # at the front of a packed batch


def pack(batch: Batch) -> Tensor:
    """Pack a batch on the CPU into one int64 tensor, to send it to another process; without embeddings of images."""
    num_logits = batch.logits_indices.shape[0]
    others, states, images = batch.other_groups, batch.states, batch.images
    sizes = [
        *(batch.num_tokens, batch.num_seqs, batch.block_tables.shape[1], num_logits, batch.num_decodes),
        *(len(others), len(batch.adapters)),
        0 if batch.rotary_positions is None else batch.num_tokens,
        0 if images is None else len(images.rows),
        *_state_sizes(states),
    ]
    adapters = torch.tensor([(run.number, run.num_tokens) for run in batch.adapters], dtype=torch.int64).flatten()
    more = [tensor.flatten() for other in others for tensor in (other.slot_mapping, other.block_tables)]
    if states is not None:
        more.append(states.joined())
    if images is not None:
        more += [images.rows, images.positions.flatten()]
    return torch.cat([torch.tensor(sizes), *batch.device_tensors(), batch.block_tables.flatten(), *more, adapters])


def _state_sizes(states: StateBlocks | None) -> tuple[int, ...]:
    if states is None:
        return 0, 0, 0, 0
    return states.sources.shape[1], len(states.new_rows), len(states.cleared), len(states.drafted)


def unpack(numbers: Tensor) -> Batch:
    """Return the batch that `pack` packed."""
    num_tokens, num_seqs, max_blocks, num_logits, num_decodes, num_others, *more = numbers[:NUM_SIZES].tolist()
    num_runs, num_rotary, num_image_tokens, num_state_blocks, num_new, num_cleared, num_drafted = more
    sizes = [num_tokens] * 3 + [num_seqs + 1, num_seqs, num_logits, num_rotary, num_seqs * max_blocks]
    sizes += [num_tokens, num_seqs * max_blocks] * num_others
    sizes += [2 * num_seqs * num_state_blocks + num_new + num_cleared]
    sizes += [num_image_tokens, 3 * num_tokens if num_image_tokens else 0, 2 * num_runs]
    drafted = range(num_decodes, num_decodes + num_drafted)
    *tensors, states, image_rows, axes, adapters = numbers[NUM_SIZES:].split_with_sizes(sizes)
    return Batch(
        token_ids=tensors[0],
        positions=tensors[1],
        slot_mapping=tensors[2],
        query_starts=tensors[3],
        context_lens=tensors[4],
        logits_indices=tensors[5],
        block_tables=tensors[7].view(num_seqs, max_blocks),
        query_lens_list=tensors[3].diff().tolist(),
        context_lens_list=tensors[4].tolist(),
        num_decodes=num_decodes,
        rotary_positions=tensors[6] if num_rotary else None,
        images=ImageTokens(image_rows, axes.view(3, -1)) if num_image_tokens else None,
        other_groups=tuple(
            GroupBlocks(slots, tables.view(num_seqs, max_blocks))
            for slots, tables in zip(tensors[8::2], tensors[9::2], strict=True)
        ),
        adapters=tuple(AdapterRun(*run) for run in adapters.view(-1, 2).tolist()),
        states=StateBlocks.split(states, num_seqs, num_state_blocks, num_new, drafted) if num_state_blocks else None,
    )
