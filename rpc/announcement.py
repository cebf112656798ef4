"""Tells a peer that blocks are ready to be read."""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from engine.request import BlockId
from kvtransfer.checksum import block_checksums
from protos import worker_pb2

PIECE_BYTES = 32 << 20  # whose checksums are sent together


@dataclass(frozen=True, slots=True)
class Piece:
    """Announced blocks whose checksums are still to be sent."""

    first_index: int
    blocks: Sequence[BlockId]


class Announcements:
    """Messages for blocks whose bytes are final: where they are, at once; their checksums while the peer reads."""

    def __init__(self, pool: Tensor) -> None:
        self._pool = pool
        self._piece = max(1, PIECE_BYTES // pool[0].nbytes)
        self._unchecked: deque[Piece] = deque()

    def announce(
        self, first_index: int, blocks: Sequence[BlockId], computed_at_s: float
    ) -> worker_pb2.BlocksReady | None:
        """Where blocks are that stand in the block table from `first_index` on; None if there are none.

        `computed_at_s` is the monotonic clock when the last of them was computed.
        """
        if not blocks:
            return None
        for start in range(0, len(blocks), self._piece):
            self._unchecked.append(Piece(first_index + start, blocks[start : start + self._piece]))
        return worker_pb2.BlocksReady(first_index=first_index, block_ids=blocks, computed_at_s=computed_at_s)

    @property
    def has_unchecked(self) -> bool:
        """Whether checksums are still to be sent."""
        return bool(self._unchecked)

    async def next_checksums(self) -> worker_pb2.BlockChecksums:
        """The checksums of the next announced blocks."""
        piece = self._unchecked.popleft()
        checksums = await asyncio.to_thread(block_checksums, self._pool, piece.blocks)
        return worker_pb2.BlockChecksums(first_index=piece.first_index, checksums=checksums)
