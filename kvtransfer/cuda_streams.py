"""What of torch.cuda is used here, which torch has not typed."""

from functools import cache
from typing import Any

import torch
from torch import Tensor

PORTABLE = 1  # cudaHostRegisterPortable: for every context


def side_stream(device: torch.device) -> Any:
    """A stream beside the engine's: one of few that torch has."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@cache
def shared_stream(device: torch.device) -> Any:
    """The stream for what takes memory for a moment: what an allocator keeps for each stream it keeps once."""
    return side_stream(device)


def wait_for(stream: Any) -> None:
    """Returns when a stream has done what it was given so far; the thread sleeps meanwhile."""
    done: Any = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    done.record(stream)
    done.synchronize()


def register_host_memory(memory: Tensor, device: torch.device) -> int:
    """Has the CUDA driver lock host memory, so that GPUs copy it by themselves; 0, or a CUDA error."""
    cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    with torch.cuda.device(device):  # or a context would be made on the first GPU, whoever's that is
        return int(cudart.cudaHostRegister(memory.data_ptr(), memory.nbytes, PORTABLE))


def unregister_host_memory(memory: Tensor) -> None:
    """Undoes that; a driver that is shutting down has done so already."""
    cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    cudart.cudaHostUnregister(memory.data_ptr())
