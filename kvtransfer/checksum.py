"""Checksums of blocks: xxh3-64 (XXH3 of the xxHash specification, seed 0) of a block's bytes.

They tell torn and mixed-up blocks from whole ones; they are no defence against a peer that lies.
"""

from collections.abc import Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray
from torch import Tensor

from kvtransfer.local_pool import block_bytes_of


def checksum(block: NDArray[np.uint8]) -> int:
    """Checksum of one block's bytes. No copy; releases the GIL."""
    return xxhash.xxh3_64_intdigest(block.data)


def block_checksums(pool: Tensor, blocks: Sequence[int]) -> list[int]:
    """Checksums of blocks (dim 0 of a contiguous CPU pool), in order."""
    data = block_bytes_of(pool)
    return [checksum(data[block]) for block in blocks]
