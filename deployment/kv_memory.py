"""How much memory a worker's KV cache gets where nobody says."""

from engine.config import EngineConfig, ModelConfig

FREE_MEMORY_SHARE = 1 / 8  # for the KV caches of all workers together
MIN_BYTES, MAX_BYTES = 128 << 20, 4 << 30  # of one worker
BYTES_PER_VALUE = {"bfloat16": 2, "float32": 4}


def default_kv_bytes(free_bytes: int, num_workers: int, model: ModelConfig, engine: EngineConfig) -> int:
    """A worker's share of the free memory, but no more than a full batch of the longest requests could fill."""
    share_bytes = min(max(int(free_bytes * FREE_MEMORY_SHARE) // num_workers, MIN_BYTES), MAX_BYTES)
    max_tokens = engine.max_num_seqs * min(engine.max_model_len or model.max_model_len, model.max_model_len)
    return min(share_bytes, max(max_tokens * kv_bytes_per_token(model), MIN_BYTES))


def kv_bytes_per_token(model: ModelConfig) -> int:
    """Bytes of one token's keys and values in all layers; with MLA, of its latent vector and rotary key."""
    values = 2 * model.num_kv_heads * model.head_dim
    if model.mla is not None:
        values = model.mla.kv_lora_rank + model.mla.qk_rope_head_dim
    return model.num_layers * values * BYTES_PER_VALUE[model.dtype]
