"""The window of host memory between a GPU pool and the transports that transfer only host memory."""

import asyncio
from collections.abc import Iterable
from weakref import WeakValueDictionary

import torch

from baton.kvtransfer.cuda_streams import register_host_memory, unregister_host_memory
from baton.kvtransfer.errors import TransportUnavailable
from baton.kvtransfer.local_pool import LocalPool
from baton.kvtransfer.shared_memory.pool import SharedPool

FRAME_BYTES = 4 << 20  # large enough to saturate the network and PCIe, small enough for low latency
WINDOW_BYTES = 128 << 20
MIN_FRAMES = 4  # applies if blocks are so large that the window would have fewer frames
READER_SHARE = 4  # one reader gets at most one in 4 of the readers' frames
MIN_READER_FRAMES = 2  # one is read while the other is filled


class Frames:
    """The free frames; used on one event loop."""

    def __init__(self, frames: Iterable[int]) -> None:
        self._free: asyncio.LifoQueue[int] = asyncio.LifoQueue()  # the last frame used may still be in a cache
        for frame in frames:
            self._free.put_nowait(frame)

    def __len__(self) -> int:
        return self._free.qsize()

    async def borrow(self) -> int:
        """Wait for a free frame and return its index."""
        return await self._free.get()

    def give_back(self, frame: int) -> None:
        """Return a frame; no copy into it or out of it may be in flight."""
        self._free.put_nowait(frame)


class Share:
    """The limit on the frames of one reader, over all its connections."""

    def __init__(self, frames: Frames, max_frames: int) -> None:
        self._frames = frames
        self._left = asyncio.Semaphore(max_frames)

    async def borrow(self) -> int:
        """Wait until the reader is below its limit and a frame is free; return its index."""
        await self._left.acquire()
        try:
            return await self._frames.borrow()
        except BaseException:
            self._left.release()
            raise

    def give_back(self, frame: int) -> None:
        """Return a frame; no copy into it or out of it may be in flight."""
        self._frames.give_back(frame)
        self._left.release()


class ReadersFrames:
    """The frames lent to readers, with a limit per reader, so that a stalled one cannot starve the others."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._max_frames = max(MIN_READER_FRAMES, len(frames) // READER_SHARE)
        self._shares: WeakValueDictionary[str, Share] = WeakValueDictionary()  # kept alive by a reader's connections

    def share_of(self, reader: str) -> Share:
        """Return the share of a reader, identified by its incarnation."""
        share = self._shares.get(reader)
        if share is None:
            share = self._shares[reader] = Share(self._frames, self._max_frames)
        return share


class StagingWindow:
    """Host memory pinned for the pool's GPU, divided into frames: half for readers, half for our reads.

    With one shared set, two peers that read each other could deadlock, each waiting for a frame that the other holds.
    """

    def __init__(self, memory: SharedPool, pool: LocalPool, num_bytes: int = WINDOW_BYTES) -> None:
        """Allocate the window. Raises TransportUnavailable if the host memory cannot be allocated or pinned."""
        self.frame_blocks = max(1, FRAME_BYTES // pool.block_bytes)
        num_frames = max(MIN_FRAMES, num_bytes // (self.frame_blocks * pool.block_bytes))
        try:
            self.tensor = memory.allocate((num_frames * self.frame_blocks, pool.block_bytes), torch.uint8)
        except (MemoryError, OSError) as error:
            raise TransportUnavailable(f"no host memory to stage blocks in: {error}") from error
        self._device = pool.tensor.device
        if self._device.type == "cuda":
            error_code = register_host_memory(self.tensor, self._device)
            if error_code:
                raise TransportUnavailable(
                    f"{self.tensor.nbytes} bytes of host memory cannot be pinned for the GPU: CUDA error {error_code}"
                )
        self.for_readers = Frames(range(num_frames // 2))
        self.for_reads = Frames(range(num_frames // 2, num_frames))

    def close(self) -> None:
        """Unpin the memory, which the SharedPool owns; no copy may be in flight. Idempotent."""
        if self._device.type == "cuda" and self.tensor.numel():
            unregister_host_memory(self.tensor, self._device)
        self.tensor = torch.empty(0)
