"""Copies of single blocks between a pool and host memory, for stores."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from baton.kvtransfer.cuda_streams import on, shared_stream, wait_for
from baton.kvtransfer.errors import torch_failures
from baton.kvtransfer.local_pool import block_bytes_of


class PoolBlocks:
    """Blocks of a contiguous pool, [num_blocks, ...], as bytes. Usable from any thread; calls block.

    If blocks have several shards, each of these counts as a block: those of block `b` have the numbers from
    `b * num_shards` on.

    On a GPU, copies go through pinned memory and a side stream, so they do not wait for a step. They raise
    TransferFailed on a GPU error.
    """

    def __init__(self, pool: Tensor, num_shards: int = 1) -> None:
        self._is_on_gpu = pool.device.type != "cpu"
        self._memory = None if self._is_on_gpu else block_bytes_of(pool).reshape(len(pool) * num_shards, -1)
        self._rows = pool.detach().reshape(-1).view(torch.uint8).view(len(pool) * num_shards, -1)
        self._device = pool.device
        self.block_bytes = self._rows.shape[1]

    def buffer(self, num_blocks: int) -> Tensor:
        """Return uninitialised host memory for some blocks, uint8 [num_blocks, block_bytes]; pinned if it helps."""
        return torch.empty(num_blocks, self.block_bytes, dtype=torch.uint8, pin_memory=self._is_on_gpu)

    def copy_out(self, blocks: Sequence[int], buffer: Tensor) -> None:
        """Copy blocks to the first rows of a buffer."""
        if self._memory is not None:
            rows = rows_of(buffer)
            for row, block in enumerate(blocks):
                rows[row] = self._memory[block]
            return
        stream = shared_stream(self._device)
        with torch_failures("copying blocks from the GPU"), on(stream):
            for row, block in enumerate(blocks):
                buffer[row].copy_(self._rows[block], non_blocking=True)
            wait_for(stream)

    def memory(self, block: int) -> memoryview | None:
        """Return the memory of a block; None on a GPU."""
        return None if self._memory is None else self._memory[block].data

    def copy_in(self, buffer: Tensor, row: int, block: int) -> None:
        """Copy a row of a buffer to a block."""
        if self._memory is not None:
            self._memory[block] = rows_of(buffer)[row]
            return
        stream = shared_stream(self._device)
        with torch_failures("copying a block to the GPU"), on(stream):
            self._rows[block].copy_(buffer[row], non_blocking=True)
            wait_for(stream)


def rows_of(buffer: Tensor) -> NDArray[np.uint8]:
    """Return a buffer's memory as [num_blocks, block_bytes]; torch would start a team of threads for each thread."""
    rows: NDArray[np.uint8] = buffer.numpy()
    return rows
