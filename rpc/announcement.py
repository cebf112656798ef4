"""Tells a peer that blocks are ready to be read."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from torch import Tensor

from engine.request import BlockId
from kvtransfer.checksum import block_checksums
from protos import worker_pb2

PIECE_BYTES = 4 << 20  # announced together: the peer reads one piece while the next one's checksums are made


async def announce(
    pool: Tensor, first_index: int, blocks: Sequence[BlockId], computed_at_s: float
) -> AsyncIterator[worker_pb2.BlocksReady]:
    """Messages for blocks whose bytes are final, `first_index` being the first one's place in the block table.

    `computed_at_s` is the monotonic clock when the last of them was computed.
    """
    piece = max(1, PIECE_BYTES // pool[0].nbytes)
    pieces = [blocks[start : start + piece] for start in range(0, len(blocks), piece)]
    loop = asyncio.get_running_loop()
    making = [loop.run_in_executor(None, block_checksums, pool, ids) for ids in pieces[:1]]
    for number, ids in enumerate(pieces):
        checksums = await making[number]
        if number + 1 < len(pieces):  # while this piece is sent
            making.append(loop.run_in_executor(None, block_checksums, pool, pieces[number + 1]))
        yield worker_pb2.BlocksReady(
            first_index=first_index + number * piece,
            block_ids=ids,
            checksums=checksums,
            computed_at_s=computed_at_s,
        )
