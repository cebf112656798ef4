"""The types that KV may have in the cache; no torch.

A *row* is what one token has of one head: its key or its value, or with MLA its latent. In int8 every row has a scale
of its own, in float32, which lies behind its elements: whoever has a row, or a block of them, has the scales. In fp8
(E4M3) a layer has one scale for its keys and one for its values, fixed by the checkpoint (engine/kv/scales.py): blocks
hold elements alone.
"""

from baton.engine.config import ModelConfig
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
