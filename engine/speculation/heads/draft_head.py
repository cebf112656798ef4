"""A draft head in memory: its network, its KV in separate blocks, and the model's hidden states that it reads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from baton.engine.execution.batch_builder import BatchBuilder
from baton.engine.execution.device import to_device_async, wait_for
from baton.engine.kv.block_manager import BlockManager
from baton.engine.kv.groups import KVGroups
from baton.engine.kv.layout import KVCacheLayout
from baton.engine.models.causal_lm import CausalLM
from baton.engine.models.hidden_states import Combine, HiddenStates
from baton.engine.request import Request
from baton.engine.sampling.sampler import Sampler
from baton.engine.scheduling.schedule import ScheduledRequest
from baton.engine.speculation.heads.head_checkpoint import HeadCheckpoint
from baton.engine.speculation.heads.head_model import HeadModel, HeadOutput
from baton.engine.speculation.heads.loading import HeadLoader
from baton.engine.speculation.twins import Twin, Twins, in_step_order


class DraftHead:
    """A draft head that is ready to compute. It is not divided among ranks: rank 0 has all of it.

    1. A step of the model leaves the hidden states of its tokens in the slots of their KV.
    2. Token `i + 1` and the hidden state of token `i` are a row of the head's twin, which gives it KV of its own.
    3. The last row's output is the first draft. With it and the head's own hidden state, the next row is computed.
    """

    def __init__(
        self, model: HeadModel, states: HiddenStates, pool: Tensor, sampler: Sampler, checkpoint: HeadCheckpoint
    ) -> None:
        """states: of the model; pool: of the head's KV; sampler: of the model's vocabulary."""
        block_size = checkpoint.engine.block_size
        self.max_model_len = checkpoint.max_model_len
        self.step_tokens = checkpoint.engine.step_tokens
        self.blocks = BlockManager(len(pool), block_size, enable_prefix_caching=False)
        self._model = model
        self._states = states
        self._pool = pool
        self._sampler = sampler
        self._builder = BatchBuilder(block_size, KVGroups(block_size))
        self._rows: dict[Twin, int] = {}  # rows of the twins in the last output
        self._estimated = torch.empty(0)  # hidden states of the last output

    def twins(self) -> Twins:
        """Return the owner of its blocks."""
        return Twins(self.blocks, self._sampler.vocab_size, first_of=_first_row)

    def sample(self, twins: Sequence[Twin]) -> Sequence[int]:
        """Return a token that may follow those of each twin; see `TwinModel`."""
        by_own = {twin.own: twin for twin in twins}
        items = in_step_order(twin.next_pass() for twin in twins)
        ordered = [by_own[item.request] for item in items]
        output = self._forward(items, ordered)
        self._rows, self._estimated = {twin: row for row, twin in enumerate(ordered)}, output.states
        drafted = {row: twin.own.token_ids[twin.num_known :] for row, twin in enumerate(ordered)}
        token_ids = self._sampler.draw(output.logits, [twin.request for twin in ordered], drafted=drafted).tolist()
        return [token_ids[self._rows[twin]] for twin in twins]

    def compute(self, chunks: Mapping[Twin, int]) -> None:
        """Compute KV of twins, and wait for it, since its time is measured; see `TwinModel`."""
        by_own = {twin.own: twin for twin in chunks}
        items = in_step_order(twin.next_chunk(count) for twin, count in chunks.items())
        self._forward(items, [by_own[item.request] for item in items])
        wait_for(self._pool.device)

    def _forward(self, items: Sequence[ScheduledRequest], twins: Sequence[Twin]) -> HeadOutput:
        last = -1
        indices = []
        for item in items:
            last += item.num_new_tokens
            if item.samples:
                indices.append(last)
        batch = self._builder.build(items, indices)
        return self._model.forward(batch, self._inputs(items, twins), self._pool)

    def _inputs(self, items: Sequence[ScheduledRequest], twins: Sequence[Twin]) -> Tensor:
        """Return the hidden states in front of the rows, [num_rows, hidden]: the model's, or for drafted tokens the
        head's. The rows of a pass are of one kind.
        """
        device = self._pool.device
        if all(item.start >= twin.num_known for item, twin in zip(items, twins, strict=True)):
            rows = torch.tensor([self._rows[twin] for twin in twins])
            return self._estimated[to_device_async(rows, device)]
        slots = [slot for item, twin in zip(items, twins, strict=True) for slot in self._slots(item, twin)]
        return self._states.at(to_device_async(torch.tensor(slots), device))

    def _slots(self, item: ScheduledRequest, twin: Twin) -> Sequence[int]:
        """Return the slots of the model's tokens in front of a twin's rows."""
        table, size, first = twin.request.block_table, self._builder.block_size, twin.first - 1 + item.start
        return [table[place // size] * size + place % size for place in range(first, first + item.num_new_tokens)]


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """A draft head that has no memory for KV and hidden states yet."""

    checkpoint: HeadCheckpoint
    target: CausalLM
    model: HeadModel
    combine: Combine | None
    device: torch.device

    @classmethod
    def load(cls, checkpoint: HeadCheckpoint, target: CausalLM, device: torch.device) -> Self:
        """Load the weights of a draft head. Raises InvalidCheckpoint or UnsupportedModel."""
        return cls(checkpoint, target, *HeadLoader(checkpoint, target, device).load(), device)

    def with_blocks(self, num_blocks: int, eos_token_ids: frozenset[int]) -> DraftHead:
        """Return the head with memory for as many blocks as the model has; the model keeps hidden states from now on.

        eos_token_ids: of the model, which are masked below a request's `min_tokens`.
        """
        checkpoint, config = self.checkpoint, self.checkpoint.config
        layout = KVCacheLayout.of(config, checkpoint.engine.block_size)
        pool = torch.zeros(layout.pool_shape(num_blocks), dtype=layout.dtype, device=self.device)
        rows = torch.zeros(
            num_blocks * checkpoint.engine.block_size, config.hidden_size, dtype=layout.dtype, device=self.device
        )
        states = HiddenStates(checkpoint.layers, self.combine, rows)
        self.target.hidden_states = states
        return DraftHead(self.model, states, pool, Sampler(checkpoint.target.vocab_size, eos_token_ids), checkpoint)


def _first_row(request: Request) -> int:
    """Return the first token of a request that follows one whose hidden state a step has left."""
    return request.num_without_states + 1
