"""The location of a pool's memory in NIXL's terms, and UCX's support for GPU memory."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

UCX_CUDA_MODULE = "libuct_cuda"
EXPANDABLE = "memory of PyTorch's expandable segments (PYTORCH_CUDA_ALLOC_CONF) cannot be opened by another process"


@dataclass(frozen=True, slots=True)
class MemoryPlace:
    """A kind of memory and its device."""

    kind: str = "DRAM"  # or VRAM
    device: int = 0  # index in this process

    @classmethod
    def of(cls, memory: Tensor) -> "MemoryPlace":
        """Return the location of a tensor on the CPU or a GPU."""
        return cls("VRAM", memory.get_device()) if memory.is_cuda else cls()

    @property
    def is_gpu(self) -> bool:
        """Whether this is GPU memory."""
        return self.kind == "VRAM"

    @property
    def name(self) -> str:
        """Name for messages."""
        return "GPU memory" if self.is_gpu else "host memory"


def gpu_number(device: torch.device) -> int | None:
    """Return the index of a GPU in this process; None for the CPU, or if CUDA is not available."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    return device.index if device.index is not None else torch.cuda.current_device()


def bind_thread(device: int) -> None:
    """Make a GPU's CUDA context current in the calling thread, in which UCX registers and copies memory."""
    torch.cuda.set_device(device)
    torch.cuda.current_stream(device).synchronize()


def has_ucx_cuda() -> bool:
    """Return whether UCX has loaded its CUDA transports into this process, which needs the driver's libcuda."""
    return any(UCX_CUDA_MODULE in line for line in Path("/proc/self/maps").read_text().splitlines())
