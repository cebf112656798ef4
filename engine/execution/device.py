"""On which GPU a thread computes, and which there are."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from baton.engine.execution.visible_gpus import VisibleGpus, describe_gpus


def gpus_here() -> VisibleGpus:
    """The GPUs that this process can use, as `visible_gpus` has it, in a process that has torch."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return describe_gpus(count, has_cuda=torch.version.cuda is not None)


@contextmanager
def computing_on(device: torch.device) -> Iterator[None]:
    """Streams, events and libraries that this thread makes or calls meanwhile are of this GPU, if it is one."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device):
        yield


def pinned(numbers: Tensor, device: torch.device) -> Tensor:
    """A copy that a GPU can fetch while the host goes on; `numbers` themselves for another device.

    Its memory is given to the next one when the copy is done: torch sees to that. Of other memory more than a few
    kilobytes are fetched in pieces, and whoever asks for it may wait for all that is under way.
    """
    return numbers.pin_memory() if device.type == "cuda" else numbers


def to_device_async(numbers: Tensor, device: torch.device) -> Tensor:
    """Numbers on their way from the host to a device; who launches work with them there need not wait."""
    return pinned(numbers, device).to(device, non_blocking=True)
