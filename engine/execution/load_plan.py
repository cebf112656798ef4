"""The plan of a load: what is decided from the config before weights are read, and the pool's size."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch

from baton.engine.attention.base import AttentionBackend
from baton.engine.attention.factory import attention_for
from baton.engine.attention.flashinfer import FlashInferAttention
from baton.engine.attention.grouped import GroupedAttention
from baton.engine.config import EngineConfig, ModelConfig
from baton.engine.errors import EngineError, UnsupportedModel
from baton.engine.execution.device_memory import bytes_for_kv, check_fits
from baton.engine.experts.group import ExpertGroup
from baton.engine.kv.capacity import PoolSize, configured_context, configured_kv_bytes
from baton.engine.kv.fingerprint import compatibility_fingerprint, mixed_fingerprint
from baton.engine.kv.groups import KVGroups
from baton.engine.kv.layout import KVCacheLayout
from baton.engine.kv.state_layout import check_recurrent
from baton.engine.layers.weights.fp8_weight import products_of
from baton.engine.models.causal_lm import CausalLM
from baton.engine.offload.check import check_offload
from baton.engine.parallel.tensor_parallel import TensorGroup
from baton.engine.parallel.tensor_shard import TensorShard
from baton.engine.speculation.drafts import Draft, draft_of
from baton.engine.speculation.heads.head_checkpoint import HeadCheckpoint

FINGERPRINT_DIGITS = 15  # hex digits of a fingerprint that ranks compare: as many as an int64 holds


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Layout and KV groups of a checkpoint, or of one rank's shard of it."""

    config: EngineConfig
    whole: ModelConfig  # of the whole model
    shard: TensorShard
    num_parts: int  # shards of a block of the whole model
    layout: KVCacheLayout
    groups: KVGroups
    draft: Draft | None  # None: there is neither a draft model nor a head

    @classmethod
    def of(cls, config: EngineConfig, whole: ModelConfig, shard: TensorShard, *, is_expert_parallel: bool) -> Self:
        """Return the plan. Raises UnsupportedModel for options that do not go with the model or with each other."""
        shard.check(whole)
        check_offload(config, whole, shard.size, is_expert_parallel=is_expert_parallel)
        num_parts = shard.kv_parts(whole, config.kv_shards)
        check_recurrent(config, whole, num_parts)
        groups = KVGroups.of(config, whole)
        try:
            layout = KVCacheLayout.of(whole, config.block_size, num_parts, shard.size, config.kv_cache_dtype, groups)
        except ValueError as error:
            raise UnsupportedModel(f"kv_shards: {error}") from error
        groups = groups.with_states(config, whole, layout.block_bytes // layout.num_parts, num_parts)
        draft = draft_of(config, whole)
        if isinstance(draft, HeadCheckpoint):
            draft.check_group(is_expert_parallel=is_expert_parallel)
        return cls(config, whole, shard, num_parts, layout, groups, draft)

    def fingerprint(self, weights_revision: str) -> str:
        """Return the fingerprint of the KV that the model computes with these weights."""
        config, whole = self.config, self.whole
        return compatibility_fingerprint(
            Path(config.model),
            whole,
            config.block_size,
            weights_revision,
            Path(config.tokenizer_directory),
            self.num_parts,
            config.kv_cache_dtype,
            config.quantization or products_of(whole.stored_quantization, whole.dtype, torch.device(config.device)),
            self.groups,
        )

    def mixed_fingerprint(self) -> str:
        """Return the fingerprint of KV that is exchanged whatever the quantisation of the weights."""
        config, tokenizer = self.config, Path(self.config.tokenizer_directory)
        return mixed_fingerprint(
            tokenizer, self.whole, config.block_size, self.num_parts, config.kv_cache_dtype, self.groups
        )

    def agree(self, tensor: TensorGroup, size: PoolSize) -> None:
        """Compare the ranks' settings before they load anything; their weights are compared after loading."""
        tensor.agree(("number of KV blocks", "max_model_len"), (size.num_blocks, size.max_model_len))
        tensor.agree(("model, dtype or block size",), (compared_digits(self.fingerprint("of any")),), "x")

    def size_beforehand(self, group: ExpertGroup | None) -> tuple[PoolSize, bool]:
        """Return the pool's size, and whether its number of blocks must be measured once the model is loaded."""
        config = self.config
        kv_bytes = configured_kv_bytes(config)
        if kv_bytes is not None:
            if not config.is_on_cpu:
                check_fits(kv_bytes, torch.device(config.device))
            return self._size_in(kv_bytes), False
        if group is not None:
            raise EngineError(
                "expert_parallel on GPUs needs kv_cache_memory_bytes: the memory left for KV is not measured there"
            )
        return PoolSize(0, configured_context(config, self.whole)), True

    def measured_size(
        self, model: CausalLM, max_model_len: int, tensor: TensorGroup | None, *, records: bool
    ) -> PoolSize:
        """Return the size of a pool in the GPU memory that the loaded model leaves; records: it records CUDA graphs."""
        config = self.config
        kv_bytes = bytes_for_kv(
            config,
            max_model_len,
            model,
            self.layout,
            self._num_columns,
            records=records,
            encoder=model.vision,
            groups=self.groups,
        )
        kv_bytes = tensor.minimum(kv_bytes) if tensor is not None else kv_bytes
        if kv_bytes <= 0:
            raise EngineError(
                f"the weights, the largest step and other processes leave no memory of {config.device} for KV: raise "
                f"gpu_memory_utilization ({config.gpu_memory_utilization}) or lower max_num_batched_tokens"
            )
        return self._size_in(kv_bytes)

    def _size_in(self, kv_bytes: int) -> PoolSize:
        draft_block_bytes = self.draft.block_bytes if self.draft is not None else 0
        return PoolSize.in_bytes(kv_bytes, self.config, self.whole, self.layout, self.groups, draft_block_bytes)

    @property
    def _num_columns(self) -> int:
        """Number of logits columns that this rank gets: rank 0 gathers all of them, the others have their own."""
        vocab_size = self.whole.vocab_size
        ours = range(vocab_size)[self.shard.of(vocab_size)]
        return vocab_size if self.shard.rank == 0 else len(ours)

    def attention(self) -> AttentionBackend:
        """Return the attention backend for this rank's heads. Raises EngineError for steps that are too large."""
        config, heads = self.config, self.shard.local(self.whole)
        device = torch.device(config.device)
        attention, *others = [
            attention_for(heads, config.block_size, device, config.kv_cache_dtype, self.layout.num_parts)
            for _ in self.groups.spans
        ]
        if others:
            return GroupedAttention([attention, *others])
        if isinstance(attention, FlashInferAttention) and config.step_tokens > (attention.most_tokens or math.inf):
            raise EngineError(
                f"max_num_batched_tokens is {config.step_tokens}, "
                f"but MLA on a GPU allows at most {attention.most_tokens}"
            )
        return attention


def compared_digits(fingerprint: str) -> int:
    """Return the digits of a fingerprint that ranks compare."""
    return int(fingerprint.partition("-")[2][:FINGERPRINT_DIGITS], 16)
