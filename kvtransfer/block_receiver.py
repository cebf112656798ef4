"""A request's blocks on their way in."""

import asyncio
import time
from collections.abc import Sequence

from torch import Tensor

from baton.kvtransfer.base import KVTransport, PeerId, nobody
from baton.kvtransfer.block_slice import WHOLE_BLOCK, BlockSlice
from baton.kvtransfer.checksum.block_checksum import XXH3, UnitChecksums
from baton.kvtransfer.errors import ChecksumMismatch, PeerRefused

MAX_READ_BYTES = 64 << 20  # read in one go: the deadline is for as much, and a failure costs no more


class BlockReceiver:
    """Pulls announced blocks of one peer into a request's own blocks and compares them with their checksums.

    A unit's own checksum is made as it lands, or on a GPU once all that is read in one go is here; the peer's may be
    announced before or after that. The blocks before
    `num_blocks_received` are whole and checked, whatever fails later; of a block that comes from several peers, what
    comes from this one is. After an error the receiver is of no more use, and the request's blocks may be used again
    only when `transport.quarantine.wait_clear` says so.
    """

    def __init__(
        self,
        transport: KVTransport,
        peer: PeerId,
        pool: Tensor,
        block_table: Sequence[int],
        deadline_s: float,
        num_blocks_received: int = 0,
        block_slice: BlockSlice = WHOLE_BLOCK,
        checksum_kind: str = XXH3,
    ) -> None:
        """`block_table`: ids of the request's blocks in `pool`; the first `num_blocks_received` are here already.

        `deadline_s` is for each 64 MiB; `block_slice`: what is read of each block; `checksum_kind`: what the peer
        makes. Raises PeerRefused for a kind that is not made of our pool.
        """
        self._transport = transport
        self._peer = peer
        self._slice = block_slice
        self._unit_bytes = pool.nbytes // len(pool) // block_slice.local_per_block
        self._checksums = UnitChecksums(pool, self._unit_bytes, checksum_kind)
        self._block_table = list(block_table)
        self._deadline_s = deadline_s
        self._num_known = num_blocks_received
        self._landed: list[int] = []  # checksums of the units that were read, some for each block
        self._announced: list[int] = []  # checksums of the same units in the peer's pool
        self.num_blocks_received = num_blocks_received
        self.transfer_s = 0.0  # spent in reads, without making checksums

    @property
    def peer(self) -> PeerId:
        """Whose blocks they are."""
        return self._peer

    @property
    def num_blocks_read(self) -> int:
        """Blocks that are here, checked or not."""
        return self._num_known + len(self._landed) // self._slice.num_units

    @property
    def num_blocks_expected(self) -> int:
        """Blocks whose checksums are known."""
        return self._num_known + len(self._announced) // self._slice.num_units

    async def read(self, first_index: int, remote: Sequence[int]) -> None:
        """Reads the peer's blocks `remote`, which stand in the block table from `first_index` on.

        Raises what `KVTransport.read` raises, PeerRefused for an announcement that leaves a gap or does not fit the
        block table, and ChecksumMismatch.
        """
        num_here = self._num_here(first_index, len(remote), self.num_blocks_read)
        remote = remote[num_here:]
        step = max(1, MAX_READ_BYTES // (self._unit_bytes * self._slice.num_units))
        for start in range(0, len(remote), step):
            await self._read_once(remote[start : start + step])
            self._compare()

    def expect(self, first_index: int, checksums: Sequence[int]) -> None:
        """Takes the announced checksums of the blocks from `first_index` on: of every unit of the peer's blocks.

        Raises PeerRefused if they leave a gap or do not fit the block table, and ChecksumMismatch.
        """
        count, rest = divmod(len(checksums), self._slice.remote_per_block)
        if rest:
            raise PeerRefused(f"{len(checksums)} checksums came of blocks of {self._slice.remote_per_block} units each")
        num_here = self._num_here(first_index, count, self.num_blocks_expected)
        part = self._slice.pairs(range(num_here, count), ())
        self._announced += [checksums[unit] for unit in part.remote]
        self._compare()

    def _num_here(self, first_index: int, count: int, num_blocks: int) -> int:
        """How many of the announced blocks are before `num_blocks`, the next one wanted."""
        end = first_index + count
        if not 0 <= first_index <= num_blocks or end > len(self._block_table):
            raise PeerRefused(
                f"blocks {first_index} to {end} were announced, expected {num_blocks} next of {len(self._block_table)}"
            )
        return num_blocks - first_index

    async def _read_once(self, remote: Sequence[int]) -> None:
        local = self._block_table[self.num_blocks_read : self.num_blocks_read + len(remote)]
        units = self._slice.pairs(remote, local)
        checksums: list[int] = []
        checksums_s = 0.0

        def landed(num_units: int) -> None:
            nonlocal checksums_s
            started = time.perf_counter()
            come = units.local[len(checksums) : len(checksums) + num_units]
            checksums.extend(self._checksums.of(come))
            checksums_s += time.perf_counter() - started

        note = nobody if self._checksums.is_on_gpu else landed
        started = time.perf_counter()
        try:
            await self._transport.read(self._peer, units.remote, units.local, self._deadline_s, note)
        finally:
            self.transfer_s += time.perf_counter() - started - checksums_s
        if self._checksums.is_on_gpu:
            checksums = await asyncio.to_thread(self._checksums.of, units.local)
        self._landed += checksums

    def _compare(self) -> None:
        """Counts the blocks that are as announced. Raises ChecksumMismatch naming the first that is not."""
        count = self._slice.num_units
        num_both = min(self.num_blocks_read, self.num_blocks_expected)
        for index in range(self.num_blocks_received, num_both):
            units = slice((index - self._num_known) * count, (index - self._num_known + 1) * count)
            if self._landed[units] != self._announced[units]:
                raise ChecksumMismatch(
                    f"block {index} of the request, in block {self._block_table[index]}, does not have the checksum "
                    f"that peer {self._peer} announced"
                )
            self.num_blocks_received += 1
