"""Which attention serves."""

import logging

import torch

from engine.attention.base import AttentionBackend
from engine.attention.torch_reference import TorchAttention
from engine.config import ModelConfig
from engine.errors import UnsupportedModel
from engine.kv_dtype import kv_cache_dtype

try:
    from engine.attention.native import NativeAttention
except ImportError:  # nothing was compiled when this was installed
    NativeAttention = None  # type: ignore[assignment, misc]  # there is no optional class for mypy

log = logging.getLogger(__name__)


def attention_for(
    config: ModelConfig, block_size: int, device: torch.device, kv_dtype: str = "auto"
) -> AttentionBackend:
    """On a CPU the compiled kernel, or where there is none torch's, which the log then says; elsewhere torch's.

    config: with the heads that are here. Raises UnsupportedModel for a type of KV that is not for this model or device.
    """
    is_quantised = kv_cache_dtype(config, kv_dtype) == "int8"
    if device.type != "cpu":
        if is_quantised:
            raise UnsupportedModel(
                f"kv_cache_dtype int8 is for CPUs, and the device is {device}: there it is auto or {config.dtype}"
            )
        return TorchAttention.for_model(config, block_size)
    if NativeAttention is None:
        log.warning("attention was not compiled when this was installed; torch's serves, at half the speed or less")
        return TorchAttention.for_model(config, block_size)
    return NativeAttention.for_model(config, block_size, is_quantised=is_quantised)
