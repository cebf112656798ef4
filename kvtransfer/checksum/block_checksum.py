"""Checksums of blocks or units. They tell torn and mixed-up blocks from whole ones, not a peer that lies.

There are two kinds. `xxh3` is xxh3-64 (XXH3 of the xxHash specification, seed 0) of the bytes: a core makes it of 30 GB
a second, a GPU badly. `words` is `word_checksum`: a GPU makes it as fast as it reads, a core takes some tens of times
as long as for the other. So who announces blocks says with its pool which kind it makes, that which suits its memory,
and who reads them makes the same.
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
    """What suits a pool's memory."""
    return XXH3 if pool.device.type == "cpu" else WORDS


def checksum(block: NDArray[np.uint8]) -> int:
    """xxh3 of the bytes of one block or unit. No copy; releases the GIL."""
    return xxhash.xxh3_64_intdigest(block.data)


class UnitChecksums:
    """Makes checksums of one kind of the units of a contiguous pool; every call blocks until they are made.

    It raises TransferFailed where a GPU or its memory does not do.
    """

    def __init__(self, pool: Tensor, unit_bytes: int, kind: str) -> None:
        """Raises PeerRefused, since it is a peer that names the kind, for one that is not made of such a pool."""
        if kind not in (XXH3, WORDS):
            raise PeerRefused(f"the peer makes checksums of kind {truncated_repr(kind)}, known are {XXH3} and {WORDS}")
        self.is_on_gpu = pool.device.type != "cpu"
        if kind == XXH3 and self.is_on_gpu:
            raise PeerRefused(f"the peer makes checksums of kind {XXH3}, which are not made of a pool on {pool.device}")
        self._bytes = block_bytes_of(pool).reshape(-1, unit_bytes) if kind == XXH3 else None
        self._rows = pool.detach().reshape(-1).view(torch.uint8).view(-1, unit_bytes)

    def of(self, units: Sequence[int]) -> list[int]:
        """Of units, in order; a GPU is waited for once, beside its other work."""
        if self._bytes is not None:
            return [checksum(self._bytes[unit]) for unit in units]
        stream = shared_stream(self._rows.device) if self.is_on_gpu else None
        with torch_failures("making checksums"), on(stream):
            return word_checksums(self._rows, units)


def block_checksums(pool: Tensor, blocks: Sequence[int], units_per_block: int = 1) -> list[int]:
    """Checksums of blocks of a contiguous pool, in order, of the kind that suits it; of each one for every unit."""
    unit_bytes = pool.nbytes // len(pool) // units_per_block
    made = UnitChecksums(pool, unit_bytes, kind_for(pool))
    if units_per_block == 1:
        return made.of(blocks)
    return made.of([block * units_per_block + unit for block in blocks for unit in range(units_per_block)])


def warm_checksums(pool: Tensor) -> None:
    """Has a GPU load what makes checksums of a pool, and Triton compile it: before there are requests.

    CUDA loads a kernel when it is first used, and may wait for all that runs to do so: for NCCL's kernels too, which
    wait for a peer.
    """
    if pool.is_cuda:
        block_checksums(pool, [0])
