"""Host memory between a pool on a GPU and the transports that move host memory only."""

import asyncio
from collections.abc import Iterable

import torch

from kvtransfer.cuda_streams import register_host_memory, unregister_host_memory
from kvtransfer.errors import TransportUnavailable
from kvtransfer.local_pool import LocalPool
from kvtransfer.shared_pool import SharedPool

FRAME_BYTES = 4 << 20  # staged at once: enough for a link and for PCIe, little to wait for
WINDOW_BYTES = 128 << 20
FEWEST_FRAMES = 4  # blocks may be larger than a frame is meant to be


class Frames:
    """Frames that are free; used on one event loop."""

    def __init__(self, frames: Iterable[int]) -> None:
        self._free: asyncio.LifoQueue[int] = asyncio.LifoQueue()  # what was used last may be in a cache
        for frame in frames:
            self._free.put_nowait(frame)

    async def borrow(self) -> int:
        """A frame, as soon as one is free."""
        return await self._free.get()

    def give_back(self, frame: int) -> None:
        """Nobody copies into the frame or out of it any more."""
        self._free.put_nowait(frame)


class StagingWindow:
    """Owns the memory, pinned for the pool's GPU: frames of some blocks, half of them for readers, half for reads.

    Two halves, since a read that waited for a frame that a peer has, which waits for one of ours, would wait for ever.
    """

    def __init__(self, memory: SharedPool, pool: LocalPool, num_bytes: int = WINDOW_BYTES) -> None:
        """Raises TransportUnavailable where no host memory can be pinned, MemoryError where there is none."""
        self.frame_blocks = max(1, FRAME_BYTES // pool.block_bytes)
        num_frames = max(FEWEST_FRAMES, num_bytes // (self.frame_blocks * pool.block_bytes))
        self.tensor = memory.allocate((num_frames * self.frame_blocks, pool.block_bytes), torch.uint8)
        self._is_pinned = pool.tensor.is_cuda
        if self._is_pinned:
            error = register_host_memory(self.tensor, pool.tensor.device)
            if error:
                raise TransportUnavailable(
                    f"{self.tensor.nbytes} bytes of host memory cannot be pinned for the GPU: CUDA error {error}"
                )
        self.for_readers = Frames(range(num_frames // 2))
        self.for_reads = Frames(range(num_frames // 2, num_frames))

    def close(self) -> None:
        """Lets go of the memory, which is its SharedPool's; no copy may be under way."""
        if self._is_pinned:
            unregister_host_memory(self.tensor)
        self.tensor = torch.empty(0)
