"""A draft model in memory: its weights, and its KV in separate blocks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch

from baton.engine.attention.factory import attention_for
from baton.engine.errors import UnsupportedModel
from baton.engine.execution.model_runner import ModelRunner
from baton.engine.kv.block_manager import BlockManager
from baton.engine.kv.layout import KVCacheLayout
from baton.engine.models import load_model
from baton.engine.models.causal_lm import CausalLM
from baton.engine.sampling.sampler import Sampler
from baton.engine.speculation.config import OPTION
from baton.engine.speculation.draft_checkpoint import DraftCheckpoint
from baton.engine.speculation.twins import Twin, Twins, in_step_order


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A draft model that is ready to compute. It is not divided among ranks: rank 0 has all of it."""

    runner: ModelRunner
    blocks: BlockManager
    vocab_size: int
    max_model_len: int  # tokens of the longest request for which it drafts
    step_tokens: int  # most tokens of prompts that it computes before a step

    def twins(self) -> Twins:
        """Return the owner of its blocks."""
        return Twins(self.blocks, self.vocab_size)

    def sample(self, twins: Sequence[Twin]) -> Sequence[int]:
        """Return a token that may follow those of each twin; see `TwinModel`."""
        items = in_step_order(twin.next_pass() for twin in twins)
        results = zip(items, self.runner.run(items), strict=True)
        sampled = {item.request: result.sampled.token_id for item, result in results if result.sampled is not None}
        return [sampled[twin.own] for twin in twins]

    def compute(self, chunks: Mapping[Twin, int]) -> None:
        """Compute KV of twins; see `TwinModel`."""
        self.runner.run(in_step_order(twin.next_chunk(count) for twin, count in chunks.items()))


@dataclass(frozen=True, slots=True)
class DraftWeights:
    """A draft model that has no memory for KV yet."""

    checkpoint: DraftCheckpoint
    model: CausalLM
    device: torch.device

    @classmethod
    def load(cls, checkpoint: DraftCheckpoint, device: torch.device) -> Self:
        """Load the weights of a draft model. Raises InvalidCheckpoint or UnsupportedModel."""
        engine = checkpoint.engine
        config = replace(checkpoint.config, rope=checkpoint.config.rope.for_context(checkpoint.max_model_len))
        attention = attention_for(config, engine.block_size, device)
        model = load_model(
            checkpoint.directory,
            replace(config, max_model_len=checkpoint.max_model_len),
            device,
            attention,
            quantization=engine.quantization,
        )
        if not model.has_head:
            directory = checkpoint.directory
            raise UnsupportedModel(f"{OPTION}: the draft model {directory} has no lm_head, so it cannot draft")
        return cls(checkpoint, model, device)

    def with_blocks(self, num_blocks: int, eos_token_ids: frozenset[int]) -> DraftModel:
        """Return the draft model with memory for as many blocks as the model for which it drafts has.

        eos_token_ids: of that model, which are masked below a request's `min_tokens`.
        """
        engine, config = self.checkpoint.engine, self.checkpoint.config
        layout = KVCacheLayout.of(config, engine.block_size)
        pool = torch.zeros(layout.pool_shape(num_blocks), dtype=layout.dtype, device=self.device)
        known = frozenset(each for each in eos_token_ids if each < config.vocab_size)
        return DraftModel(
            ModelRunner(self.model, pool, engine.block_size, Sampler(config.vocab_size, known)),
            BlockManager(num_blocks, engine.block_size, engine.enable_prefix_caching),
            config.vocab_size,
            self.checkpoint.max_model_len,
            engine.step_tokens,
        )
