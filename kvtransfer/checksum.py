"""Checksums of blocks or units: xxh3-64 (XXH3 of the xxHash specification, seed 0) of their bytes.

They tell torn and mixed-up blocks from whole ones; they are no defence against a peer that lies.
"""

from collections.abc import Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray
from torch import Tensor

from kvtransfer.local_pool import block_bytes_of


def checksum(block: NDArray[np.uint8]) -> int:
    """Checksum of the bytes of one block or unit. No copy; releases the GIL."""
    return xxhash.xxh3_64_intdigest(block.data)


def block_checksums(pool: Tensor, blocks: Sequence[int], units_per_block: int = 1) -> list[int]:
    """Checksums of blocks (dim 0 of a contiguous CPU pool), in order; of each block one for every unit of it."""
    data = block_bytes_of(pool)
    if units_per_block == 1:
        return [checksum(data[block]) for block in blocks]
    units = data.reshape(data.shape[0], units_per_block, -1)
    return [checksum(unit) for block in blocks for unit in units[block]]
