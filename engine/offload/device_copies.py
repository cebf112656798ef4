"""Copies to a device next to its computation, and the host memory that they are made from."""

from contextlib import suppress
from typing import Protocol

import torch
from torch import Tensor

from baton.engine.errors import EngineError


class DeviceCopies(Protocol):
    """Copies into numbered buffers, each ordered after the computation that used the buffer before."""

    def pin(self, memory: Tensor) -> None:
        """Let a device read host memory while the host does something else."""
        ...

    def start(self, buffer: int, target: Tensor, source: Tensor) -> None:
        """Start to copy `source` to `target`, a part of a buffer, once the buffer is released."""
        ...

    def wait(self, buffer: int) -> None:
        """Let the computation that is launched next wait for the copy to a buffer."""
        ...

    def release(self, buffer: int) -> None:
        """Let later copies to a buffer wait for the computation that was launched so far."""
        ...

    def close(self) -> None:
        """Wait for the copies, after which host memory and buffers may be freed."""
        ...


class CudaCopies:
    """Copies on a stream of their own. Events order them with the current stream; the host never waits."""

    def __init__(self, device: torch.device, num_buffers: int) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pinned: list[Tensor] = []
        self._copied = [torch.cuda.Event() for _ in range(num_buffers)]  # type: ignore[no-untyped-call]
        self._released = [torch.cuda.Event() for _ in range(num_buffers)]  # type: ignore[no-untyped-call]

    def pin(self, memory: Tensor) -> None:
        """Lock the memory's pages until `close`. Raises EngineError.

        torch's own pinned memory would be rounded up to a power of two.
        """
        if not memory.nbytes:  # CUDA refuses to lock nothing
            return
        cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        code = int(cudart.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0))
        if code:
            raise EngineError(
                f"weights_offload host: {memory.nbytes} bytes of host memory cannot be page-locked (CUDA error "
                f"{code}): free some, or raise the limit of locked memory (ulimit -l)"
            )
        self._pinned.append(memory)

    def start(self, buffer: int, target: Tensor, source: Tensor) -> None:
        """Copy on the side stream; see DeviceCopies."""
        self._stream.wait_event(self._released[buffer])
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
            self._copied[buffer].record(self._stream)

    def wait(self, buffer: int) -> None:
        """Let the current stream wait for the copy."""
        torch.cuda.current_stream(self._device).wait_event(self._copied[buffer])

    def release(self, buffer: int) -> None:
        """Record where the current stream is."""
        self._released[buffer].record(torch.cuda.current_stream(self._device))

    def close(self) -> None:
        """Wait for the side stream, and unlock the pages: CUDA would take other memory at their addresses for them."""
        with suppress(RuntimeError):  # a device that has failed copies nothing
            self._stream.synchronize()
        cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        while self._pinned:
            cudart.cudaHostUnregister(self._pinned.pop().data_ptr())


class SerialCopies:
    """Copies that are made when they are started, on a device whose computation is serial too."""

    def pin(self, memory: Tensor) -> None:
        """Return: any memory can be read."""

    def start(self, buffer: int, target: Tensor, source: Tensor) -> None:
        """Copy now."""
        target.copy_(source)

    def wait(self, buffer: int) -> None:
        """Return: the copy has been made."""

    def release(self, buffer: int) -> None:
        """Return: the computation has been made."""

    def close(self) -> None:
        """Return: all copies have been made."""
