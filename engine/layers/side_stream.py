"""Work that a GPU may do beside other work."""

from collections.abc import Callable

import torch
from torch import Tensor


class SideStream:
    """Owns a second stream of a GPU; on a CPU everything is done in its turn."""

    def __init__(self) -> None:
        self._stream: torch.cuda.Stream | None = None  # made when it is first needed

    def begin(self, compute: Callable[[], Tensor], like: Tensor) -> Callable[[], Tensor]:
        """Computes beside what is launched from now on, on the device of `like`; what is returned waits for it.

        What `compute` reads must stay as it is, and its memory held, until then.
        """
        if not like.is_cuda:
            result = compute()
            return lambda: result
        if self._stream is None:
            self._stream = torch.cuda.Stream(like.device)  # type: ignore[no-untyped-call]
        side, main = self._stream, torch.cuda.current_stream(like.device)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            computed = compute()

        def wait() -> Tensor:
            main.wait_stream(side)
            computed.record_stream(main)  # its memory is the side's to give away
            return computed

        return wait
