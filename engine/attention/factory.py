"""Which attention serves."""

import logging

import torch

from baton.engine.attention.base import AttentionBackend
from baton.engine.attention.flashinfer import FlashInferAttention, is_made_for
from baton.engine.attention.heads import AttentionHeads
from baton.engine.attention.torch_reference import TorchAttention
from baton.engine.config import ModelConfig
from baton.engine.errors import UnsupportedModel
from baton.engine.kv.dtype import kv_cache_dtype
from baton.engine.kv.layout import torch_dtype

try:
    from baton.engine.attention.native import NativeAttention
except ImportError:  # nothing was compiled when this was installed
    NativeAttention = None  # type: ignore[assignment, misc]  # there is no optional class for mypy

log = logging.getLogger(__name__)


def attention_for(
    config: ModelConfig, block_size: int, device: torch.device, kv_dtype: str = "auto", num_parts: int = 1
) -> AttentionBackend:
    """On a CPU the compiled kernel, on a GPU FlashInfer's; where they are not to be had torch's, as the log then says.

    config: with the heads that are here; num_parts: of the blocks that are here. Raises UnsupportedModel for a type of
    KV that is not for this model or device.
    """
    cached = kv_cache_dtype(config, kv_dtype)
    if device.type != "cpu":
        if cached == "int8":
            raise UnsupportedModel(
                f"kv_cache_dtype int8 is for CPUs, and the device is {device}: there it is auto, {config.dtype} or fp8"
            )
        return _on_gpu(config, block_size, device, torch_dtype(cached), num_parts)
    if cached == "fp8":
        log.warning("KV in fp8 is for GPUs: on a CPU torch's attention serves it, slowly; int8 is fast there")
        return TorchAttention.for_model(config, block_size)
    if NativeAttention is None:
        log.warning("attention was not compiled when this was installed; torch's serves, at half the speed or less")
        return TorchAttention.for_model(config, block_size)
    return NativeAttention.for_model(config, block_size, torch_dtype(cached))


def _on_gpu(
    config: ModelConfig, block_size: int, device: torch.device, kv_dtype: torch.dtype, num_parts: int
) -> AttentionBackend:
    heads = AttentionHeads.of(config, kv_dtype)
    if not is_made_for(heads):
        width = (
            f"{heads.key_width} elements a head" if config.mla is None else f"a latent of {heads.key_width} elements"
        )
        log.warning(
            "FlashInfer has no kernels for %s in %s: using torch's attention, which is slow", width, config.dtype
        )
        return TorchAttention.for_model(config, block_size)
    try:
        return FlashInferAttention(config.attention_scale, block_size, heads, device, num_parts)
    except ImportError as error:
        log.warning("using torch's attention, which is slow: %s", error)
        return TorchAttention.for_model(config, block_size)
