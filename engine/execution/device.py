"""GPU that a thread computes on, and copies to it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from baton.engine.execution.visible_gpus import VisibleGpus, describe_gpus


def gpus_here() -> VisibleGpus:
    """Return the same as `visible_gpus`, without a subprocess, for a process that has torch."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return describe_gpus(count, has_cuda=torch.version.cuda is not None)


@contextmanager
def computing_on(device: torch.device) -> Iterator[None]:
    """Make `device` the current GPU for streams, events and libraries of this thread; no effect if it is not a GPU."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device):
        yield


def pinned(numbers: Tensor, device: torch.device) -> Tensor:
    """Return a pinned copy that a GPU can read asynchronously; `numbers` itself for another device.

    torch reuses its memory once the transfer is complete. From pageable memory, more than a few kilobytes are copied in
    pieces, and the caller may block until all queued GPU work is done.
    """
    return numbers.pin_memory() if device.type == "cuda" else numbers


def to_device_async(numbers: Tensor, device: torch.device) -> Tensor:
    """Copy host arrays to the device asynchronously; work launched on them afterwards need not wait."""
    return pinned(numbers, device).to(device, non_blocking=True)


def wait_for(device: torch.device) -> None:
    """Wait until the device has done the work that this thread has launched; no effect if it is not a GPU."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
