"""Choice of the row operations for a device."""

import logging
from functools import cache

import torch

from baton.engine.ops.base import LayerOps
from baton.engine.ops.flashinfer_ops import FlashInferOps
from baton.engine.ops.torch_ops import TorchOps

try:
    from baton.engine.ops.native_ops import NativeOps
except ImportError:  # installed without the compiled extensions
    NativeOps = None  # type: ignore[assignment, misc]  # mypy has no optional class

log = logging.getLogger(__name__)

TORCH_OPS: LayerOps = TorchOps()
CPU_OPS: LayerOps = NativeOps() if NativeOps is not None else TORCH_OPS


def ops_for(device: torch.device) -> LayerOps:
    """Return the native operations on a CPU, FlashInfer's on a GPU, and torch's if these are not available."""
    if device.type == "cpu":
        return CPU_OPS
    return _cuda_ops() if device.type == "cuda" else TORCH_OPS


@cache
def _cuda_ops() -> LayerOps:
    """Return the GPU operations; cached per process, since every layer of every step asks for them."""
    try:
        return FlashInferOps()
    except ImportError as error:
        log.warning("using torch's norms, rotations and SwiGLU, which are slow: %s", error)
        return TORCH_OPS
