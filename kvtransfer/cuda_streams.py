"""What of torch.cuda is used here, which torch has not typed."""

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor

PORTABLE = 1  # cudaHostRegisterPortable: for every context
# Torch has 32 streams of each priority and hands them out in turn. The engine's are of priority 0, NCCL's below are of
# the highest: none of these may be one of ours by chance, or what runs there would wait for what is ours.
PRIORITY = -1


def side_stream(device: torch.device) -> Any:
    """A stream beside the engine's: one of few that torch has."""
    return torch.cuda.Stream(device, priority=PRIORITY)  # type: ignore[no-untyped-call]


@cache
def shared_stream(device: torch.device) -> Any:
    """The stream for what takes memory for a moment: what an allocator keeps for each stream it keeps once."""
    return side_stream(device)


class SideStreams:
    """Streams that are used again, so that never more are out than torch has; from any thread."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free: list[Any] = []

    def take(self) -> Any:
        """A stream that nobody else has; None for a CPU."""
        if self._device.type != "cuda":
            return None
        try:
            return self._free.pop()
        except IndexError:
            return side_stream(self._device)

    def give_back(self, stream: Any) -> None:
        """Nothing more will be given to the stream, and what was ends."""
        if stream is not None:
            self._free.append(stream)


def on(stream: Any) -> AbstractContextManager[object]:
    """Within, work goes to the stream; None: CUDA is not even asked, which would start it up in a process on a CPU."""
    if stream is None:
        return nullcontext()
    within: AbstractContextManager[object] = torch.cuda.stream(stream)
    return within


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


def unregister_host_memory(memory: Tensor, device: torch.device) -> None:
    """Undoes that; a driver that is shutting down has done so already."""
    cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    with torch.cuda.device(device):
        cudart.cudaHostUnregister(memory.data_ptr())
