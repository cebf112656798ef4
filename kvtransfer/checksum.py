"""Checksums of blocks: xxh3-64 (XXH3 of the xxHash specification, seed 0) of a block's bytes.

They tell torn and mixed-up blocks from whole ones; they are no defence against a peer that lies.
"""

from collections.abc import Sequence

import xxhash
from torch import Tensor

from kvtransfer.local_pool import block_bytes_of


def block_checksums(pool: Tensor, blocks: Sequence[int]) -> list[int]:
    """Checksums of blocks (dim 0 of a contiguous CPU pool), in order. No copy; releases the GIL on each block."""
    data = block_bytes_of(pool)
    return [xxhash.xxh3_64_intdigest(data[block]) for block in blocks]


def first_mismatch(pool: Tensor, blocks: Sequence[int], expected: Sequence[int]) -> int | None:
    """Index of the first block in `blocks` whose bytes are not the expected ones, None if all are."""
    data = block_bytes_of(pool)
    for index, (block, checksum) in enumerate(zip(blocks, expected, strict=True)):
        if xxhash.xxh3_64_intdigest(data[block]) != checksum:
            return index
    return None
