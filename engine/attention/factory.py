"""Choice of the attention backend."""

import logging
from collections.abc import Callable
from dataclasses import replace

import torch

from baton.engine.attention.base import AttentionBackend
from baton.engine.attention.flashinfer import FlashInferAttention, is_made_for
from baton.engine.attention.heads import AttentionHeads
from baton.engine.attention.mixed_heads import MixedHeadsAttention
from baton.engine.attention.torch_reference import TorchAttention
from baton.engine.config import ModelConfig
from baton.engine.errors import UnsupportedModel
from baton.engine.kv.dtype import kv_cache_dtype
from baton.engine.kv.layout import torch_dtype
from baton.engine.kv_heads import KVHeads

try:
    from baton.engine.attention.native import NativeAttention
except ImportError:  # installed without the compiled extensions
    NativeAttention = None  # type: ignore[assignment, misc]  # mypy has no optional class

log = logging.getLogger(__name__)

NOT_USED = "FlashInfer's kernels are not used for %s: using torch's attention, which is slow"


def attention_for(
    config: ModelConfig, block_size: int, device: torch.device, kv_dtype: str = "auto", num_parts: int = 1
) -> AttentionBackend:
    """Return the native backend on a CPU, FlashInfer's on a GPU; if not available, torch's, with a warning in the log.

    config: with this rank's heads only; num_parts: this rank's shards per block. Raises UnsupportedModel for a KV dtype
    that the model or device does not support.
    """
    cached = kv_cache_dtype(config, kv_dtype)
    if device.type == "cpu":
        return _for_each_heads(config, lambda heads: _on_cpu(heads, block_size, cached))
    if cached in ("int8", "int4"):
        raise UnsupportedModel(
            f"kv_cache_dtype {cached} is for CPUs, but the device is {device}: use auto, {config.dtype} or fp8"
        )
    if (layers := _layers_for_torch(config)) is not None:
        log.warning(NOT_USED, layers)
        return _for_each_heads(config, lambda heads: TorchAttention.for_model(heads, block_size))
    return _on_gpu(config, block_size, device, torch_dtype(cached), num_parts)


def _for_each_heads(config: ModelConfig, make: Callable[[ModelConfig], AttentionBackend]) -> AttentionBackend:
    """Return the backend that `make` returns; if layers have KV heads of two sizes, one for each size."""
    if config.whole_heads is None:
        return make(config)
    windowed, whole = replace(config, whole_heads=None), config.whole_heads
    wide = replace(windowed, num_kv_heads=whole.count, head_dim=whole.width)
    return MixedHeadsAttention(make(wide), whole, make(windowed), KVHeads(windowed.num_kv_heads, windowed.head_dim))


def _layers_for_torch(config: ModelConfig) -> str | None:
    """Return the kind of layers for which a GPU needs torch's attention, whatever their heads; None: it has none."""
    if config.mla is not None and config.mla.indexer is not None:
        return "sparse attention"
    if config.whole_heads is not None:
        return "layers with KV heads of two sizes"
    return "layers that share KV" if config.num_kv_shared_layers else None


def _on_cpu(config: ModelConfig, block_size: int, cached: str) -> AttentionBackend:
    if cached == "fp8":
        log.warning("fp8 KV is for GPUs: on a CPU it needs torch's attention, which is slow; use int8")
        return TorchAttention.for_model(config, block_size)
    if NativeAttention is None:
        log.warning("installed without the compiled attention; using torch's, at half the speed or less")
        return TorchAttention.for_model(config, block_size)
    return NativeAttention.for_model(config, block_size, torch_dtype(cached))


def _on_gpu(
    config: ModelConfig, block_size: int, device: torch.device, kv_dtype: torch.dtype, num_parts: int
) -> AttentionBackend:
    heads = AttentionHeads.of(config, kv_dtype)
    if not is_made_for(heads):
        width = f"a head width of {heads.key_width}" if config.mla is None else f"a latent width of {heads.key_width}"
        log.warning(
            "FlashInfer has no kernels for %s in %s: using torch's attention, which is slow", width, config.dtype
        )
        return TorchAttention.for_model(config, block_size)
    if any(span.is_chunked and (span.size or 0) % block_size for span in config.spans):
        log.warning("FlashInfer needs chunks of whole blocks of %d: using torch's attention, which is slow", block_size)
        return TorchAttention.for_model(config, block_size)
    try:
        return FlashInferAttention(
            config.attention_scale,
            block_size,
            heads,
            device,
            num_parts,
            soft_cap=config.attention_soft_cap,
            spans=config.spans,
        )
    except ImportError as error:
        log.warning("using torch's attention, which is slow: %s", error)
        return TorchAttention.for_model(config, block_size)
