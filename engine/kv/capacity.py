"""How much fits: blocks in the memory given, and tokens in a request."""

import logging
from dataclasses import dataclass

from baton.engine.config import EngineConfig, ModelConfig
from baton.engine.errors import EngineError
from baton.engine.kv.layout import KVCacheLayout

logger = logging.getLogger(__name__)

CPU_KV_BYTES = 512 << 20  # unless told otherwise
MIN_BLOCKS = 2  # one pads block tables


@dataclass(frozen=True, slots=True)
class PoolSize:
    """How large a pool is, and so how long a request may be."""

    num_blocks: int  # 0 while the memory for it is not known
    max_model_len: int  # prompt plus output

    @classmethod
    def in_bytes(cls, kv_bytes: int, config: EngineConfig, model: ModelConfig, layout: KVCacheLayout) -> "PoolSize":
        """What fits into so much memory. Raises EngineError if that is too little, or less than was asked for."""
        num_blocks = num_blocks_in(kv_bytes, layout)
        return cls(num_blocks, context_length(config, model, num_blocks, kv_bytes))


def given_kv_bytes(config: EngineConfig) -> int | None:
    """Memory for the pool as far as it is known beforehand: None where it is what a GPU has left."""
    if config.kv_cache_memory_bytes is None and config.is_on_cpu:
        return CPU_KV_BYTES
    return config.kv_cache_memory_bytes


def num_blocks_in(kv_bytes: int, layout: KVCacheLayout) -> int:
    """Blocks of a pool of so many bytes. Raises EngineError if those are too few."""
    num_blocks = kv_bytes // layout.block_bytes
    if num_blocks < MIN_BLOCKS:
        raise EngineError(
            f"kv_cache_memory_bytes is {kv_bytes}, but must be at least "
            f"{MIN_BLOCKS * layout.block_bytes}: {MIN_BLOCKS} blocks of {layout.block_bytes} bytes"
        )
    return num_blocks


def given_context(config: EngineConfig, model: ModelConfig) -> int:
    """Longest prompt plus output that was asked for, else what the checkpoint allows; EngineError if that is less."""
    if config.max_model_len is not None and config.max_model_len > model.max_model_len:
        raise EngineError(
            f"max_model_len is {config.max_model_len}, but the checkpoint's context is {model.max_model_len} tokens"
        )
    return config.max_model_len or model.max_model_len


def context_length(config: EngineConfig, model: ModelConfig, num_blocks: int, kv_bytes: int) -> int:
    """Longest prompt plus output: what was asked for, else what the checkpoint allows and the pool can hold.

    Raises EngineError if what was asked for is more than either.
    """
    capacity, wanted = (num_blocks - 1) * config.block_size, given_context(config, model)
    if config.max_model_len is not None and wanted > capacity:
        raise EngineError(
            f"max_model_len is {wanted}, but kv_cache_memory_bytes={kv_bytes} holds the KV of {capacity} tokens; "
            "raise it or lower max_model_len"
        )
    if wanted > capacity:
        logger.warning(
            "max_model_len is %d and not the checkpoint's %d: more KV does not fit into kv_cache_memory_bytes=%d",
            capacity,
            wanted,
            kv_bytes,
        )
    return min(capacity, wanted)
