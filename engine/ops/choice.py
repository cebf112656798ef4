"""Which computations on rows serve."""

import torch

from engine.ops.base import LayerOps
from engine.ops.torch_ops import TorchOps

try:
    from engine.ops.native_ops import NativeOps
except ImportError:  # nothing was compiled when this was installed
    NativeOps = None  # type: ignore[assignment, misc]  # there is no optional class for mypy

TORCH_OPS: LayerOps = TorchOps()
CPU_OPS: LayerOps = NativeOps() if NativeOps is not None else TORCH_OPS


def ops_for(device: torch.device) -> LayerOps:
    """On a CPU the compiled ones, or where there are none torch's; elsewhere torch's."""
    return CPU_OPS if device.type == "cpu" else TORCH_OPS
