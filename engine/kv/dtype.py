"""Data types of cached KV; no torch.

A *row* is one token's key or value in one head, or with MLA its latent. In int8 and int4 every row is followed by its
own float32 scale, so a copy of a row or block includes the scales. In int4 a byte holds two elements. In fp8 (E4M3)
each layer has one scale for keys and one for values, fixed by the checkpoint (engine/kv/scales.py); blocks hold only
elements.
"""

from baton.engine.config import EngineConfig, ModelConfig
from baton.engine.errors import UnsupportedModel

SCALE_BYTES = 4
STATE_ITEM_BYTES = 4  # recurrent state is in float32
_FP8_NAMES = ("fp8", "fp8_e4m3")
_ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "int8": 1, "int4": 1, "fp8": 1}


def kv_cache_dtype(config: ModelConfig, asked: str) -> str:
    """Return the type of a model's cached KV for the option `asked`.

    Raises UnsupportedModel, which lists the supported types.
    """
    if asked in ("auto", config.dtype):
        return config.dtype
    if config.whole_heads is not None:
        raise UnsupportedModel(
            f"kv_cache_dtype {asked!r} is not supported for {config.architecture}, whose layers have KV heads of "
            f"several sizes, only auto and {config.dtype}"
        )
    if config.mla is not None and config.mla.indexer is not None:
        raise UnsupportedModel(
            f"kv_cache_dtype {asked!r} is not supported for {config.architecture}, whose blocks have an indexer's "
            f"keys, only auto and {config.dtype}"
        )
    if asked in _FP8_NAMES and config.mla is None:
        return "fp8"
    if asked == "int4" and config.mla is None and config.head_dim % 2 == 0:
        return asked
    if asked == "int8":
        return asked
    others = "int8, int4, fp8"
    if config.mla is not None:
        others = "int8 (int4 and fp8 are not for multi-head latent attention)"
    elif config.head_dim % 2:
        others = f"int8, fp8 (int4 is not for heads of {config.head_dim}, an odd width)"
    raise UnsupportedModel(
        f"kv_cache_dtype {asked!r} is not supported for a model in {config.dtype}, only auto, {config.dtype}, {others}"
    )


def row_items(width: int, dtype: str) -> int:
    """Return how many items of type `dtype` a row of `width` elements takes, including its scale; bytes in int4."""
    if dtype == "int4":
        return width // 2 + SCALE_BYTES
    return width + SCALE_BYTES if dtype == "int8" else width


def row_bytes(width: int, dtype: str) -> int:
    """Return how many bytes a row of `width` elements takes, including its scale."""
    return row_items(width, dtype) * _ITEM_BYTES[dtype]


FREE_MEMORY_SHARE = 1 / 8  # for the KV pools of all workers together
MIN_BYTES, MAX_BYTES = 128 << 20, 4 << 30  # per worker


def default_kv_bytes(
    free_bytes: int, num_workers: int, model: ModelConfig, engine: EngineConfig, draft_token_bytes: int = 0
) -> int:
    """Return a worker's share of the free memory, capped at what a full batch of the longest requests needs.

    draft_token_bytes: of a draft model's KV of one token.
    """
    share_bytes = min(max(int(free_bytes * FREE_MEMORY_SHARE) // num_workers, MIN_BYTES), MAX_BYTES)
    max_tokens = engine.batch_seqs * min(engine.max_model_len or model.default_model_len, model.max_model_len)
    if not model.kv_layers:
        return share_bytes  # blocks of tokens take memory all the same
    net = model.recurrent
    state_bytes = STATE_ITEM_BYTES * len(net.layers) * net.state_size if net is not None else 0
    needed_bytes = max_tokens * (kv_bytes_per_token(model, engine.kv_cache_dtype) + draft_token_bytes)
    needed_bytes += 2 * engine.batch_seqs * state_bytes  # a live state each, and a checkpoint
    return min(share_bytes, max(needed_bytes, MIN_BYTES))


def kv_bytes_per_token(model: ModelConfig, kv_dtype: str = "auto") -> int:
    """Return the bytes of one token's KV in all layers; with MLA, of its latent vector and rotary key.

    Raises UnsupportedModel for a type that this model's KV cannot have.
    """
    dtype = kv_cache_dtype(model, kv_dtype)
    if model.mla is not None:
        return len(model.kv_layers) * row_bytes(model.mla.row_dim, dtype)
    return len(model.kv_layers) * 2 * model.block_heads.count * row_bytes(model.block_heads.width, dtype)
