"""Tells a peer that blocks are ready to be read."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from torch import Tensor

from engine.request import BlockId
from kvtransfer.checksum import block_checksums
from protos import worker_pb2

PIECE_BYTES = 8 << 20  # announced together: the peer reads one piece while the next one's checksums are made


async def announce(
    pool: Tensor, first_index: int, blocks: Sequence[BlockId], computed_at_s: float
) -> AsyncIterator[worker_pb2.BlocksReady]:
    """Messages for blocks whose bytes are final, `first_index` being the first one's place in the block table.

    `computed_at_s` is the monotonic clock when the last of them was computed.
    """
    block_bytes = pool[0].numel() * pool.element_size()
    piece = max(1, PIECE_BYTES // block_bytes)
    for start in range(0, len(blocks), piece):
        ids = blocks[start : start + piece]
        yield worker_pb2.BlocksReady(
            first_index=first_index + start,
            block_ids=ids,
            checksums=await asyncio.to_thread(block_checksums, pool, ids),
            computed_at_s=computed_at_s,
        )
