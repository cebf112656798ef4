"""How much memory a worker's KV cache gets where nobody says."""

from baton.engine.config import EngineConfig, ModelConfig
from baton.engine.kv.dtype import kv_cache_dtype, row_bytes

FREE_MEMORY_SHARE = 1 / 8  # for the KV caches of all workers together
MIN_BYTES, MAX_BYTES = 128 << 20, 4 << 30  # of one worker


def default_kv_bytes(free_bytes: int, num_workers: int, model: ModelConfig, engine: EngineConfig) -> int:
    """A worker's share of the free memory, but no more than a full batch of the longest requests could fill."""
    share_bytes = min(max(int(free_bytes * FREE_MEMORY_SHARE) // num_workers, MIN_BYTES), MAX_BYTES)
    max_tokens = engine.batch_seqs * min(engine.max_model_len or model.max_model_len, model.max_model_len)
    return min(share_bytes, max(max_tokens * kv_bytes_per_token(model, engine.kv_cache_dtype), MIN_BYTES))


def kv_bytes_per_token(model: ModelConfig, kv_dtype: str = "auto") -> int:
    """Bytes of one token's keys and values in all layers; with MLA, of its latent vector and rotary key.

    Raises UnsupportedModel for a type that this model's KV cannot have.
    """
    dtype = kv_cache_dtype(model, kv_dtype)
    if model.mla is not None:
        return model.num_layers * row_bytes(model.mla.latent_dim, dtype)
    return model.num_layers * 2 * model.num_kv_heads * row_bytes(model.head_dim, dtype)
