"""What two engines must have in common to exchange KV."""

import json
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path

from baton.engine.checkpoint import weights_revision
from baton.engine.config import ModelConfig
from baton.engine.kv_cache import KVCacheLayout
from baton.engine.kv_dtype import kv_cache_dtype
from baton.engine.kv_scales import stored_kv_scales

PROTOCOL_VERSION = 2  # raised whenever a block's bytes come to mean something else


def compatibility_fingerprint(
    directory: Path,
    config: ModelConfig,
    block_size: int,
    num_parts: int = 1,
    kv_dtype: str = "auto",
    quantization: str | None = None,
) -> str:
    """Equal for two engines if and only if each can use the other's blocks: model, weights, dtype, layout, protocol.

    For KV in FP8 the scales are compared too, all of them: the samples of huge files need not hold such small tensors.
    `config` is that of the whole model: ranks that hold some of its blocks' `num_parts` parts have one fingerprint.
    """
    layout = KVCacheLayout.of(config, block_size, num_parts, kv_dtype=kv_dtype)
    parts = [PROTOCOL_VERSION, asdict(config), repr(layout), weights_revision(directory), quantization]
    if kv_cache_dtype(config, kv_dtype) == "fp8":
        parts.append(stored_kv_scales(directory))
    described = json.dumps(parts, sort_keys=True, default=sorted)  # sets have no order of their own
    return blake2b(described.encode(), digest_size=16).hexdigest()
