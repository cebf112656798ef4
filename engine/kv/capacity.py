"""Capacity of the KV pool: blocks in the available memory, and the longest request."""

import logging
from dataclasses import dataclass

from baton.engine.checkpoint.config_overrides import how_to_extend
from baton.engine.config import EngineConfig, ModelConfig
from baton.engine.errors import EngineError
from baton.engine.kv.groups import KVGroups
from baton.engine.kv.layout import KVCacheLayout

logger = logging.getLogger(__name__)

CPU_KV_BYTES = 512 << 20  # default on a CPU


@dataclass(frozen=True, slots=True)
class PoolSize:
    """Size of the KV pool and the longest request that it allows."""

    num_blocks: int  # 0 while the available memory is not known
    max_model_len: int  # prompt plus output

    @classmethod
    def in_bytes(
        cls,
        kv_bytes: int,
        config: EngineConfig,
        model: ModelConfig,
        layout: KVCacheLayout,
        groups: KVGroups,
        draft_block_bytes: int = 0,
    ) -> "PoolSize":
        """Return the size of a pool of `kv_bytes` bytes, of which a draft model's pool with as many blocks is a part.

        Raises EngineError if that is less than two blocks, or too little for the configured max_model_len. A request
        needs a block of each group for the same tokens: those behind a window are given back only once the tokens
        that attend to them are computed. It also needs two recurrent states: a checkpoint that a step reads, and the
        state that the step writes.
        """
        num_states = 2 * groups.num_state_blocks
        num_blocks = num_blocks_in(kv_bytes, layout, groups.num_groups + num_states, draft_block_bytes)
        num_places = (num_blocks - 1 - num_states) // groups.num_groups
        return cls(num_blocks, context_length(config, model, num_places, kv_bytes))


def configured_kv_bytes(config: EngineConfig) -> int | None:
    """Return the pool's memory in bytes; None if it must be measured as what a GPU has left after loading."""
    if config.kv_cache_memory_bytes is None and config.is_on_cpu:
        return CPU_KV_BYTES
    return config.kv_cache_memory_bytes


def num_blocks_in(kv_bytes: int, layout: KVCacheLayout, num_needed: int = 1, draft_block_bytes: int = 0) -> int:
    """Return how many blocks fit into `kv_bytes` bytes, each together with a block of a draft model, if there is one.

    Raises EngineError if there are not one for padding and `num_needed` more, which the shortest request takes.
    """
    block_bytes = layout.block_bytes + draft_block_bytes
    num_blocks, least = kv_bytes // block_bytes, 1 + num_needed
    if num_blocks < least:
        raise EngineError(
            f"kv_cache_memory_bytes is {kv_bytes}, but must be at least "
            f"{least * block_bytes}: {least} blocks of {block_bytes} bytes"
        )
    return num_blocks


def configured_context(config: EngineConfig, model: ModelConfig) -> int:
    """Return the longest prompt plus output in tokens: the configured one, otherwise the checkpoint's context.

    Raises EngineError if the configured one exceeds the checkpoint's.
    """
    if config.max_model_len is not None and config.max_model_len > model.max_model_len:
        raise EngineError(
            f"max_model_len is {config.max_model_len}, but the checkpoint's context is {model.max_model_len} tokens"
            + how_to_extend(model, config.max_model_len)
        )
    return config.max_model_len or model.default_model_len


def context_length(config: EngineConfig, model: ModelConfig, num_places: int, kv_bytes: int) -> int:
    """Return the longest prompt plus output in tokens: the configured one, otherwise what checkpoint and pool allow.

    num_places: blocks of each KV group that requests can hold. Raises EngineError if the configured one exceeds either.
    """
    capacity, wanted = num_places * config.block_size, configured_context(config, model)
    if config.max_model_len is not None and wanted > capacity:
        raise EngineError(
            f"max_model_len is {wanted}, but kv_cache_memory_bytes={kv_bytes} holds the KV of {capacity} tokens; "
            "raise it or lower max_model_len"
        )
    if wanted > capacity:
        logger.warning(
            "max_model_len is reduced to %d from the checkpoint's %d: kv_cache_memory_bytes=%d holds no more KV",
            capacity,
            wanted,
            kv_bytes,
        )
    return min(capacity, wanted)
