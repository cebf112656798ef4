"""Typed access to CUDA streams and pinned memory, which torch leaves untyped."""

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor

PORTABLE = 1  # cudaHostRegisterPortable: for every context
# Torch has 32 streams per priority and hands them out in turn. The engine's streams have priority 0, those of NCCL in
# `nccl/communicator.py` the highest. Ours must not coincide with either, or their work would wait for ours.
PRIORITY = -1


def side_stream(device: torch.device) -> Any:
    """Return one of torch's 32 streams at the priority reserved for KV transfer."""
    return torch.cuda.Stream(device, priority=PRIORITY)  # type: ignore[no-untyped-call]


@cache
def shared_stream(device: torch.device) -> Any:
    """Return the stream for short-lived allocations; sharing it keeps the allocator to one cache."""
    return side_stream(device)


class SideStreams:
    """Reusable side streams, so that no more are in use than torch has; usable from any thread."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free: list[Any] = []

    def take(self) -> Any:
        """Return a stream that is not in use; None for a CPU."""
        if self._device.type != "cuda":
            return None
        try:
            return self._free.pop()
        except IndexError:
            return side_stream(self._device)

    def give_back(self, stream: Any) -> None:
        """Return a stream for reuse; the caller submits no more work to it, and its pending work will end."""
        if stream is not None:
            self._free.append(stream)


def on(stream: Any) -> AbstractContextManager[object]:
    """Return a context that submits work to the stream; None does not touch CUDA, which would initialise it."""
    if stream is None:
        return nullcontext()
    within: AbstractContextManager[object] = torch.cuda.stream(stream)
    return within


def wait_for(stream: Any) -> None:
    """Wait until a stream has finished the work submitted so far; the thread sleeps instead of spinning."""
    done: Any = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    done.record(stream)
    done.synchronize()


def register_host_memory(memory: Tensor, device: torch.device) -> int:
    """Pin host memory, so that GPUs copy it by DMA. Returns 0 or a CUDA error code."""
    cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    with torch.cuda.device(device):  # otherwise CUDA creates a context on GPU 0, which may belong to another process
        return int(cudart.cudaHostRegister(memory.data_ptr(), memory.nbytes, PORTABLE))


def unregister_host_memory(memory: Tensor, device: torch.device) -> None:
    """Unpin host memory; errors are ignored, since a driver that is shutting down has unpinned it already."""
    cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    with torch.cuda.device(device):
        cudart.cudaHostUnregister(memory.data_ptr())
