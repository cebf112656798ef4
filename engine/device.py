"""On which GPU a thread computes."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def computing_on(device: torch.device) -> Iterator[None]:
    """Streams, events and libraries that this thread makes or calls meanwhile are of this GPU, if it is one."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device):
        yield
