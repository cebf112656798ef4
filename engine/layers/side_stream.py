"""Work that a GPU may do beside other work."""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor


def begin_beside(compute: Callable[[], Tensor], device: torch.device) -> Callable[[], Tensor]:
    """Computes beside what is launched from now on, if the device is a GPU; what is returned waits for it.

    What `compute` reads must stay as it is, and its memory held, until then. On a CPU it is computed in its turn.
    """
    if device.type != "cuda":
        result = compute()
        return lambda: result
    side, main = _side_stream(device), torch.cuda.current_stream(device)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        computed = compute()

    def wait() -> Tensor:
        # Memory that is given back goes to what is next begun there, and that waits for the main stream.
        main.wait_stream(side)
        return computed

    return wait


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all layers: what a stream has given back, no other can have."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
