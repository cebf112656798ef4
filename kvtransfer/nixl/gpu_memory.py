"""Where a pool's memory is, in NIXL's words, and what of UCX could read a GPU's."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

UCX_CUDA_MODULE = "libuct_cuda"
EXPANDABLE = "memory of PyTorch's expandable segments (PYTORCH_CUDA_ALLOC_CONF) cannot be opened by another process"


@dataclass(frozen=True, slots=True)
class MemoryPlace:
    """A kind of memory, and of which device."""

    kind: str = "DRAM"  # or VRAM
    device: int = 0  # this process's number of it

    @classmethod
    def of(cls, memory: Tensor) -> "MemoryPlace":
        """Where a tensor is, which is on the CPU or a GPU."""
        return cls("VRAM", memory.get_device()) if memory.is_cuda else cls()

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU's memory."""
        return self.kind == "VRAM"

    @property
    def name(self) -> str:
        """For people."""
        return "GPU memory" if self.is_gpu else "host memory"


def gpu_number(device: torch.device) -> int | None:
    """This process's number of a GPU; None for the host, and where there is no GPU to be had."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    return device.index if device.index is not None else torch.cuda.current_device()


def bind_thread(device: int) -> None:
    """Makes a GPU's context that of the calling thread: UCX registers and copies in the caller's."""
    torch.cuda.set_device(device)
    torch.cuda.current_stream(device).synchronize()


def has_ucx_cuda() -> bool:
    """Whether UCX has loaded its CUDA transports into this process; without the driver's libcuda it does not."""
    return any(UCX_CUDA_MODULE in line for line in Path("/proc/self/maps").read_text().splitlines())
