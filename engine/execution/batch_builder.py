"""Builder of a step's batch: tokens, positions, slots and block tables of the scheduled requests."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from baton.engine.execution.batch import AdapterRun, Batch, GroupBlocks
from baton.engine.execution.state_blocks import StateBlocks
from baton.engine.kv.groups import KVGroups
from baton.engine.request import NULL_BLOCK
from baton.engine.scheduling.schedule import ScheduledRequest


@dataclass(frozen=True, slots=True)
class BatchBuilder:
    """Builds batches for a pool with blocks of one size."""

    block_size: int
    groups: KVGroups

    def build(self, scheduled: Sequence[ScheduledRequest], logits_indices: Sequence[int]) -> Batch:
        """Return the batch of a step, on the CPU. logits_indices: tokens of it whose logits are needed."""
        query_lens = [item.num_new_tokens for item in scheduled]
        context_lens = [item.start + item.num_new_tokens for item in scheduled]
        tables = self._block_tables(scheduled, -(-max(context_lens) // self.block_size))
        token_ids: list[int] = []
        for item in scheduled:
            known = item.request.token_ids[item.start : item.start + item.num_known_tokens]
            token_ids += known or [0]  # a token sampled by the previous step is filled in on the device
            token_ids += item.drafts
        query_starts = np.concatenate(([0], np.cumsum(query_lens)))
        seq_of_token = np.repeat(np.arange(len(scheduled)), query_lens)
        starts = np.array(context_lens) - np.array(query_lens) - query_starts[:-1]
        positions = np.arange(query_starts[-1]) + starts[seq_of_token]
        blocks = tables[:, seq_of_token, positions // self.block_size]  # [num_groups, num_tokens]
        first, *others = [
            GroupBlocks(torch.from_numpy(slots), torch.from_numpy(table))
            for slots, table in zip(blocks * self.block_size + positions % self.block_size, tables, strict=True)
        ]
        return Batch(
            token_ids=torch.tensor(token_ids),
            positions=torch.from_numpy(positions),
            slot_mapping=first.slot_mapping,
            query_starts=torch.from_numpy(query_starts),
            context_lens=torch.tensor(context_lens),
            block_tables=first.block_tables,
            logits_indices=torch.tensor(logits_indices, dtype=torch.int64),
            query_lens_list=query_lens,
            context_lens_list=context_lens,
            num_decodes=sum(query_len == 1 for query_len in query_lens),
            other_groups=tuple(others),
            adapters=_adapters(scheduled),
            keeps_states=any(
                end > item.request.num_without_states for item, end in zip(scheduled, context_lens, strict=True)
            ),
            states=self._states(scheduled) if self.groups.states is not None else None,
        )

    def _states(self, scheduled: Sequence[ScheduledRequest]) -> StateBlocks:
        """Return the blocks of states. The blocks in which sequences end are cleared, if the step begins them."""
        requests = [item.request for item in scheduled]
        lasts = [(item, (item.start + item.num_new_tokens - 1) // self.block_size) for item in scheduled]
        num_decodes = sum(item.num_new_tokens == 1 for item in scheduled)
        num_drafted = sum(len(item.drafts) > 0 for item in scheduled)
        begun = [item.request.block_table[last] for item, last in lasts if item.start <= last * self.block_size]
        return StateBlocks(
            torch.tensor([request.current_state for request in requests]),
            torch.tensor([request.state_blocks for request in requests]),
            torch.tensor([row for row, item in enumerate(scheduled) if item.start == 0], dtype=torch.int64),
            torch.tensor(begun, dtype=torch.int64),
            range(num_decodes, num_decodes + num_drafted),
        )

    def _block_tables(self, scheduled: Sequence[ScheduledRequest], max_blocks: int) -> np.ndarray:
        """Return the block tables [num_groups, num_seqs, max_blocks]; null blocks are behind the windows, and after the
        step's tokens, since attention cannot multiply by zero what blocks of later ones may have held.
        """
        tables = np.full((self.groups.num_groups, len(scheduled), max_blocks), NULL_BLOCK, dtype=np.int64)
        for row, item in enumerate(scheduled):
            firsts = self.groups.first_blocks(item.start)
            end = -(-(item.start + item.num_new_tokens) // self.block_size)
            for group, (table, first) in enumerate(zip(item.request.block_tables, firsts, strict=True)):
                tables[group, row, first:end] = table[first:end]
        return tables


def _adapters(scheduled: Sequence[ScheduledRequest]) -> tuple[AdapterRun, ...]:
    """Return the runs of tokens by the matrices of their adapters; nothing if no token has one.

    Tokens in front of the invocation of an activated adapter have none.
    """
    if not any(item.request.adapter_matrices for item in scheduled):
        return ()
    runs: list[AdapterRun] = []
    for item in scheduled:
        number, num_tokens = item.request.adapter_matrices, item.num_new_tokens
        num_plain = min(max(item.request.first_adapted - item.start, 0), num_tokens) if number else num_tokens
        if num_plain:
            runs.append(AdapterRun(0, num_plain))
        if num_plain < num_tokens:
            runs.append(AdapterRun(number, num_tokens - num_plain))
    return tuple(runs) if any(run.number for run in runs) else ()
