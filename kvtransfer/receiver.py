"""A request's blocks on their way in."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from kvtransfer.base import KVTransport, PeerId
from kvtransfer.checksum import first_mismatch
from kvtransfer.errors import ChecksumMismatch, PeerRefused

INLINE_BYTES = 128 << 10  # checking this much takes less time than waking a thread


@dataclass(frozen=True, slots=True)
class Arrived:
    """Blocks that were read and not checked yet."""

    local: list[int]
    checksums: list[int]


class BlockReceiver:
    """Pulls announced blocks of one peer into a request's own blocks and checks them.

    The blocks before `num_blocks_received` are whole and checked, whatever fails later. After an error the request's
    blocks may be used again only when `transport.quarantine.wait_clear` says so.
    """

    def __init__(
        self,
        transport: KVTransport,
        peer: PeerId,
        pool: Tensor,
        block_table: Sequence[int],
        deadline_s: float,
        num_blocks_received: int = 0,
    ) -> None:
        """`block_table`: ids of the request's blocks in `pool`; the first `num_blocks_received` are here already.

        `deadline_s` is for each announcement's transfer.
        """
        self._transport = transport
        self._peer = peer
        self._pool = pool
        self._block_table = list(block_table)
        self._deadline_s = deadline_s
        self.num_blocks_read = num_blocks_received
        self.num_blocks_received = num_blocks_received
        self.transfer_s = 0.0  # spent in reads

    @property
    def peer(self) -> PeerId:
        """Whose blocks they are."""
        return self._peer

    async def receive(self, first_index: int, remote: Sequence[int], checksums: Sequence[int]) -> None:
        """Reads and checks announced blocks; see `read` and `check`."""
        arrived = await self.read(first_index, remote, checksums)
        if arrived is not None:
            await self.check(arrived)

    async def read(self, first_index: int, remote: Sequence[int], checksums: Sequence[int]) -> Arrived | None:
        """Reads the peer's blocks `remote`, which stand in the block table from `first_index` on.

        Returns what is to be checked, in this order and perhaps while more is read; None if all of it was read before.
        Raises what `KVTransport.read` raises, and PeerRefused for an announcement that leaves a gap or does not fit
        the block table.
        """
        end = first_index + len(remote)
        if len(checksums) != len(remote):
            raise PeerRefused(f"{len(remote)} blocks were announced with {len(checksums)} checksums")
        if not 0 <= first_index <= self.num_blocks_read or end > len(self._block_table):
            raise PeerRefused(
                f"blocks {first_index} to {end} were announced, expected {self.num_blocks_read} next "
                f"of {len(self._block_table)}"
            )
        num_known = self.num_blocks_read - first_index
        remote, checksums = remote[num_known:], checksums[num_known:]
        if not remote:
            return None
        local = self._block_table[self.num_blocks_read : end]
        started = time.perf_counter()
        try:
            await self._transport.read(self._peer, remote, local, self._deadline_s)
        finally:
            self.transfer_s += time.perf_counter() - started
        self.num_blocks_read = end
        return Arrived(local, list(checksums))

    async def check(self, arrived: Arrived) -> None:
        """Compares the blocks with the announced checksums. Raises ChecksumMismatch naming the first that differs."""
        local = arrived.local
        if len(local) * self._pool[0].nbytes <= INLINE_BYTES:
            wrong = first_mismatch(self._pool, local, arrived.checksums)
        else:
            wrong = await asyncio.to_thread(first_mismatch, self._pool, local, arrived.checksums)
        self.num_blocks_received += len(local) if wrong is None else wrong
        if wrong is not None:
            self.num_blocks_read = self.num_blocks_received
            raise ChecksumMismatch(
                f"block {self.num_blocks_received} of the request, in block {local[wrong]}, does not have the checksum "
                f"that peer {self._peer} announced"
            )
