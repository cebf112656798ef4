"""How much fits: blocks in the memory given, and tokens in a request."""

import logging

from engine.config import EngineConfig, ModelConfig
from engine.errors import EngineError
from engine.kv_cache import KVCacheLayout

logger = logging.getLogger(__name__)

MIN_BLOCKS = 2  # one pads block tables


def num_blocks_in(config: EngineConfig, layout: KVCacheLayout) -> int:
    """Blocks of the pool. Raises EngineError if the memory given is too small."""
    num_blocks = config.kv_cache_memory_bytes // layout.block_bytes
    if num_blocks < MIN_BLOCKS:
        raise EngineError(
            f"kv_cache_memory_bytes is {config.kv_cache_memory_bytes}, but must be at least "
            f"{MIN_BLOCKS * layout.block_bytes}: {MIN_BLOCKS} blocks of {layout.block_bytes} bytes"
        )
    return num_blocks


def context_length(config: EngineConfig, model: ModelConfig, num_blocks: int) -> int:
    """Longest prompt plus output: what was asked for, else what the checkpoint allows and the pool can hold.

    Raises EngineError if what was asked for is more than either.
    """
    capacity = (num_blocks - 1) * config.block_size
    if config.max_model_len is None:
        if capacity < model.max_model_len:
            logger.warning(
                "max_model_len is %d and not the checkpoint's %d: more KV does not fit into kv_cache_memory_bytes=%d",
                capacity,
                model.max_model_len,
                config.kv_cache_memory_bytes,
            )
        return min(capacity, model.max_model_len)
    if config.max_model_len > model.max_model_len:
        raise EngineError(
            f"max_model_len is {config.max_model_len}, but the checkpoint's context is {model.max_model_len} tokens"
        )
    if config.max_model_len > capacity:
        raise EngineError(
            f"max_model_len is {config.max_model_len}, but kv_cache_memory_bytes={config.kv_cache_memory_bytes} holds "
            f"the KV of {capacity} tokens; raise it or lower max_model_len"
        )
    return config.max_model_len
