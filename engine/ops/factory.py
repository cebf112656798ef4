"""Which computations on rows serve."""

import logging
from functools import cache

import torch

from baton.engine.ops.base import LayerOps
from baton.engine.ops.flashinfer_ops import FlashInferOps
from baton.engine.ops.torch_ops import TorchOps

try:
    from baton.engine.ops.native_ops import NativeOps
except ImportError:  # nothing was compiled when this was installed
    NativeOps = None  # type: ignore[assignment, misc]  # there is no optional class for mypy

log = logging.getLogger(__name__)

TORCH_OPS: LayerOps = TorchOps()
CPU_OPS: LayerOps = NativeOps() if NativeOps is not None else TORCH_OPS


def ops_for(device: torch.device) -> LayerOps:
    """On a CPU the compiled ones, on a GPU FlashInfer's; where they are not to be had torch's."""
    if device.type == "cpu":
        return CPU_OPS
    return _cuda_ops() if device.type == "cuda" else TORCH_OPS


@cache
def _cuda_ops() -> LayerOps:
    """For all of the process: asked for in every layer of every step."""
    try:
        return FlashInferOps()
    except ImportError as error:
        log.warning("using torch's norms, rotations and SwiGLU, which are slow: %s", error)
        return TORCH_OPS
