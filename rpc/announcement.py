"""Tells a peer that blocks are ready to be read."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from torch import Tensor

from engine.request import BlockId
from kvtransfer.checksum import block_checksums
from protos import worker_pb2

PIECE_BYTES = 4 << 20  # announced together: the peer reads one piece while the next one's checksums are made


class Announcement:
    """Messages for blocks whose bytes are final; the first checksums are made from the beginning on."""

    def __init__(self, pool: Tensor, first_index: int, blocks: Sequence[BlockId], computed_at_s: float) -> None:
        """`first_index` is the first block's place in the block table.

        `computed_at_s` is the monotonic clock when the last of them was computed.
        """
        piece = max(1, PIECE_BYTES // pool[0].nbytes)
        self._pool = pool
        self._first_index = first_index
        self._computed_at_s = computed_at_s
        self._pieces = [blocks[start : start + piece] for start in range(0, len(blocks), piece)]
        self._making: list[asyncio.Future[list[int]]] = []
        self._make_next()

    async def messages(self) -> AsyncIterator[worker_pb2.BlocksReady]:
        """A message for each piece."""
        index = self._first_index
        for number, ids in enumerate(self._pieces):
            checksums = await self._making[number]
            self._make_next()  # while this piece is sent
            yield worker_pb2.BlocksReady(
                first_index=index, block_ids=ids, checksums=checksums, computed_at_s=self._computed_at_s
            )
            index += len(ids)

    def _make_next(self) -> None:
        if len(self._making) < len(self._pieces):
            ids = self._pieces[len(self._making)]
            loop = asyncio.get_running_loop()
            self._making.append(loop.run_in_executor(None, block_checksums, self._pool, ids))
