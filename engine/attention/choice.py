"""Which attention serves."""

import logging

import torch

from engine.attention.base import AttentionBackend
from engine.attention.torch_reference import TorchAttention
from engine.config import ModelConfig

try:
    from engine.attention.native import NativeAttention
except ImportError:  # nothing was compiled when this was installed
    NativeAttention = None  # type: ignore[assignment, misc]  # there is no optional class for mypy

log = logging.getLogger(__name__)


def attention_for(config: ModelConfig, block_size: int, device: torch.device) -> AttentionBackend:
    """On a CPU the compiled kernel, or where there is none torch's, which the log then says; elsewhere torch's.

    config: with the heads that are here.
    """
    if device.type != "cpu":
        return TorchAttention.for_model(config, block_size)
    if NativeAttention is None:
        log.warning("attention was not compiled when this was installed; torch's serves, at half the speed or less")
        return TorchAttention.for_model(config, block_size)
    return NativeAttention.for_model(config, block_size)
