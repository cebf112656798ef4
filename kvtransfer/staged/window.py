"""Host memory between a pool on a GPU and the transports that move host memory only."""

import asyncio
from collections.abc import Iterable
from weakref import WeakValueDictionary

import torch

from baton.kvtransfer.cuda_streams import register_host_memory, unregister_host_memory
from baton.kvtransfer.errors import TransportUnavailable
from baton.kvtransfer.local_pool import LocalPool
from baton.kvtransfer.shared_memory.pool import SharedPool

FRAME_BYTES = 4 << 20  # staged at once: enough for a link and for PCIe, little to wait for
WINDOW_BYTES = 128 << 20
FEWEST_FRAMES = 4  # blocks may be larger than a frame is meant to be
READERS_SHARE = 4  # of the readers' frames one reader has at most a quarter
FEWEST_OF_A_READER = 2  # one of them is read while the other is filled


class Frames:
    """Frames that are free; used on one event loop."""

    def __init__(self, frames: Iterable[int]) -> None:
        self._free: asyncio.LifoQueue[int] = asyncio.LifoQueue()  # what was used last may be in a cache
        for frame in frames:
            self._free.put_nowait(frame)

    def __len__(self) -> int:
        return self._free.qsize()

    async def borrow(self) -> int:
        """A frame, as soon as one is free."""
        return await self._free.get()

    def give_back(self, frame: int) -> None:
        """Nobody copies into the frame or out of it any more."""
        self._free.put_nowait(frame)


class Share:
    """The frames that one reader may have at once, over all its connections."""

    def __init__(self, frames: Frames, most: int) -> None:
        self._frames = frames
        self._left = asyncio.Semaphore(most)

    async def borrow(self) -> int:
        """A frame, as soon as the reader may have one and one is free."""
        await self._left.acquire()
        try:
            return await self._frames.borrow()
        except BaseException:
            self._left.release()
            raise

    def give_back(self, frame: int) -> None:
        """See Frames."""
        self._frames.give_back(frame)
        self._left.release()


class ReadersFrames:
    """The frames for readers: one that stands still keeps no more than its share from the others."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._most = max(FEWEST_OF_A_READER, len(frames) // READERS_SHARE)
        self._shares: WeakValueDictionary[str, Share] = WeakValueDictionary()  # as long as it has a connection

    def share_of(self, reader: str) -> Share:
        """That of a reader, by its incarnation."""
        share = self._shares.get(reader)
        if share is None:
            share = self._shares[reader] = Share(self._frames, self._most)
        return share


class StagingWindow:
    """Owns the memory, pinned for the pool's GPU: frames of some blocks, half of them for readers, half for reads.

    Two halves, since a read that waited for a frame that a peer has, which waits for one of ours, would wait for ever.
    """

    def __init__(self, memory: SharedPool, pool: LocalPool, num_bytes: int = WINDOW_BYTES) -> None:
        """Raises TransportUnavailable where there is no host memory for it, or none that can be pinned."""
        self.frame_blocks = max(1, FRAME_BYTES // pool.block_bytes)
        num_frames = max(FEWEST_FRAMES, num_bytes // (self.frame_blocks * pool.block_bytes))
        try:
            self.tensor = memory.allocate((num_frames * self.frame_blocks, pool.block_bytes), torch.uint8)
        except (MemoryError, OSError) as error:
            raise TransportUnavailable(f"there is no host memory to stage blocks in: {error}") from error
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
        """Lets go of the memory, which is its SharedPool's; no copy may be under way. Idempotent."""
        if self._device.type == "cuda" and self.tensor.numel():
            unregister_host_memory(self.tensor, self._device)
        self.tensor = torch.empty(0)
