"""The types that KV may have in the cache; no torch.

A *row* is what one token has of one head: its key or its value, or with MLA its latent. In int8 every row has a scale
of its own, in float32, which lies behind its elements: whoever has a row, or a block of them, has the scales. In fp8
(E4M3) a layer has one scale for its keys and one for its values, fixed by the checkpoint (engine/kv/scales.py): blocks
hold elements alone.
"""

from baton.engine.config import EngineConfig, ModelConfig
from baton.engine.errors import UnsupportedModel

KV_CACHE_DTYPES = ("auto", "bfloat16", "float32", "int8", "fp8", "fp8_e4m3")
SCALE_BYTES = 4
_FP8_NAMES = ("fp8", "fp8_e4m3")
_ITEM_BYTES = {"bfloat16": 2, "float32": 4, "int8": 1, "fp8": 1}


def kv_cache_dtype(config: ModelConfig, asked: str) -> str:
    """The type of a model's KV where `asked` is asked for. Raises UnsupportedModel, saying which ones there are."""
    if asked in ("auto", config.dtype):
        return config.dtype
    if asked in _FP8_NAMES and config.mla is None:
        return "fp8"
    if asked != "int8":
        others = "int8 (fp8 is not for multi-head latent attention)" if config.mla is not None else "int8, fp8"
        raise UnsupportedModel(
            f"kv_cache_dtype {asked!r} is not supported for a model in {config.dtype}, only auto, {config.dtype}, "
            + others
        )
    return asked


def row_items(width: int, dtype: str) -> int:
    """Items of the type `dtype` in a row of so many elements, with its scale."""
    return width + SCALE_BYTES if dtype == "int8" else width


def row_bytes(width: int, dtype: str) -> int:
    """Bytes of a row of so many elements, with its scale."""
    return row_items(width, dtype) * _ITEM_BYTES[dtype]


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
