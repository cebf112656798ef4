"""Checksums of blocks or units. They detect torn and mixed-up blocks, but not a malicious peer.

There are two kinds. `xxh3` is xxh3-64 (XXH3 of the xxHash specification, seed 0) of the bytes: a CPU core computes it
at 30 GB/s, but it does not suit a GPU. `words` is `word_checksum`: a GPU computes it at memory bandwidth, a CPU core
takes tens of times as long as for `xxh3`. The owner of a pool uses the kind that suits its memory and names it in the
pool's description; readers compute the same kind.
"""

from collections.abc import Sequence

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor

from baton.kvtransfer.checksum.word_checksum import word_checksums
from baton.kvtransfer.cuda_streams import on, shared_stream
from baton.kvtransfer.errors import PeerRefused, torch_failures, truncated_repr
from baton.kvtransfer.local_pool import block_bytes_of

XXH3 = "xxh3"
WORDS = "words"


def kind_for(pool: Tensor) -> str:
    """Return the kind that suits a pool's memory: xxh3 for host memory, words for a GPU."""
    return XXH3 if pool.device.type == "cpu" else WORDS


def checksum(block: NDArray[np.uint8]) -> int:
    """Return the xxh3-64 of one block or unit. Does not copy; releases the GIL."""
    return xxhash.xxh3_64_intdigest(block.data)


class UnitChecksums:
    """Checksums of one kind for the units of a contiguous pool; every call blocks until they are computed.

    Raises TransferFailed on a GPU error or if GPU memory runs out.
    """

    def __init__(self, pool: Tensor, unit_bytes: int, kind: str) -> None:
        """Raise PeerRefused for a kind that cannot be computed for this pool; the kind is named by a peer."""
        if kind not in (XXH3, WORDS):
            raise PeerRefused(f"the peer uses checksums of kind {truncated_repr(kind)}, known are {XXH3} and {WORDS}")
        self.is_on_gpu = pool.device.type != "cpu"
        if kind == XXH3 and self.is_on_gpu:
            raise PeerRefused(f"the peer uses checksums of kind {XXH3}, which a pool on {pool.device} does not support")
        self._bytes = block_bytes_of(pool).reshape(-1, unit_bytes) if kind == XXH3 else None
        self._rows = pool.detach().reshape(-1).view(torch.uint8).view(-1, unit_bytes)

    def of(self, units: Sequence[int]) -> list[int]:
        """Return the checksums of units, in order; on a GPU with one synchronisation, on a side stream."""
        if self._bytes is not None:
            return [checksum(self._bytes[unit]) for unit in units]
        stream = shared_stream(self._rows.device) if self.is_on_gpu else None
        with torch_failures("computing checksums"), on(stream):
            return word_checksums(self._rows, units)


def block_checksums(pool: Tensor, blocks: Sequence[int], units_per_block: int = 1) -> list[int]:
    """Return the checksums of blocks of a contiguous pool: one per unit, in order, of the kind that suits the pool."""
    unit_bytes = pool.nbytes // len(pool) // units_per_block
    checksums = UnitChecksums(pool, unit_bytes, kind_for(pool))
    if units_per_block == 1:
        return checksums.of(blocks)
    return checksums.of([block * units_per_block + unit for block in blocks for unit in range(units_per_block)])


def warm_checksums(pool: Tensor) -> None:
    """Load, and let Triton compile, the checksum kernels of a GPU pool before the first request.

    CUDA loads a kernel on its first use and may wait for all running kernels, including NCCL's, which wait for a peer.
    """
    if pool.is_cuda:
        block_checksums(pool, [0])
