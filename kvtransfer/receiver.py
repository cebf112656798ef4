"""A request's blocks on their way in."""

import asyncio
import time
from collections.abc import Sequence

from torch import Tensor

from kvtransfer.base import KVTransport, PeerId
from kvtransfer.checksum import first_mismatch
from kvtransfer.errors import ChecksumMismatch, PeerRefused

INLINE_BYTES = 128 << 10  # checking this much takes less time than waking a thread


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
        self.num_blocks_received = num_blocks_received
        self.transfer_s = 0.0  # spent in reads
        self.checksum_s = 0.0  # spent in checks
        self.num_bytes = 0  # read, checked or not

    @property
    def peer(self) -> PeerId:
        """Whose blocks they are."""
        return self._peer

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return self._pool[0].nbytes

    async def receive(self, first_index: int, remote: Sequence[int], checksums: Sequence[int]) -> None:
        """Reads the peer's blocks `remote`, which stand in the block table from `first_index` on.

        Blocks that are here already are skipped. Raises what `KVTransport.read` raises, ChecksumMismatch, and
        PeerRefused for an announcement that leaves a gap or does not fit the block table.
        """
        end = first_index + len(remote)
        if len(checksums) != len(remote):
            raise PeerRefused(f"{len(remote)} blocks were announced with {len(checksums)} checksums")
        if not 0 <= first_index <= self.num_blocks_received or end > len(self._block_table):
            raise PeerRefused(
                f"blocks {first_index} to {end} were announced, expected {self.num_blocks_received} next "
                f"of {len(self._block_table)}"
            )
        num_known = self.num_blocks_received - first_index
        remote, checksums = remote[num_known:], checksums[num_known:]
        if not remote:
            return
        local = self._block_table[self.num_blocks_received : end]
        await self._read(remote, local)
        await self._check(local, checksums)

    async def _read(self, remote: Sequence[int], local: Sequence[int]) -> None:
        started = time.perf_counter()
        try:
            await self._transport.read(self._peer, remote, local, self._deadline_s)
        finally:
            self.transfer_s += time.perf_counter() - started
        self.num_bytes += len(local) * self.block_bytes

    async def _check(self, local: Sequence[int], checksums: Sequence[int]) -> None:
        started = time.perf_counter()
        if len(local) * self.block_bytes <= INLINE_BYTES:
            wrong = first_mismatch(self._pool, local, checksums)
        else:
            wrong = await asyncio.to_thread(first_mismatch, self._pool, local, checksums)
        self.checksum_s += time.perf_counter() - started
        if wrong is None:
            self.num_blocks_received += len(local)
            return
        index = self.num_blocks_received + wrong
        self.num_blocks_received = index
        raise ChecksumMismatch(
            f"block {index} of the request, in block {local[wrong]}, does not have the checksum that peer "
            f"{self._peer} announced"
        )
