"""A request's blocks on their way into one rank's pool, from all ranks of a peer that have parts of them."""

import asyncio
import time
from collections.abc import Sequence

from torch import Tensor

from baton.kvtransfer.base import KVTransport, PeerId, PoolDescription, nobody
from baton.kvtransfer.block_slice import WHOLE_BLOCK, BlockSlice, PartGroup, slices_of
from baton.kvtransfer.checksum.block_checksum import XXH3, UnitChecksums
from baton.kvtransfer.errors import ChecksumMismatch, PeerLost, PeerRefused
from baton.kvtransfer.threads import all_or_none

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


class KVReceiver:
    """Owns a receiver for each rank of the peer that this one reads from; a block is here once all its parts are.

    After an error it is of no more use; see `BlockReceiver`.
    """

    def __init__(
        self, receivers: Sequence[BlockReceiver], slices: Sequence[BlockSlice], num_sources: int, transport: str
    ) -> None:
        """receivers, slices: pairwise; num_sources: ranks of the peer; transport: names of those it comes over."""
        self.transport = transport
        self._receivers = list(receivers)
        self._slices = list(slices)
        self._num_sources = num_sources

    @classmethod
    async def connect(
        cls,
        transport: KVTransport,
        pool: Tensor,
        sources: Sequence[PoolDescription],
        readers: PartGroup,
        rank: int,
        block_table: Sequence[int],
        num_known_blocks: int,
        deadline_s: float,
    ) -> "KVReceiver":
        """Gets ready to read `sources`, the pools of the peer's ranks, into the pool of a `rank` of `readers`.

        The first `num_known_blocks` of the block table are here already. Raises what `KVTransport.connect` raises.
        """
        try:
            slices = slices_of(PartGroup(readers.num_parts, len(sources)), readers, rank)
        except ValueError as error:
            raise PeerRefused(f"the peer's pools cannot be read: {error}") from error
        ours = pool.nbytes // len(pool)
        for each in slices:
            theirs = sources[each.source].block_bytes
            if theirs * each.local_per_block != ours * each.remote_per_block:
                raise PeerRefused(
                    f"a block of rank {each.source} of {len(sources)} has {theirs} bytes, which does not go with our "
                    f"{ours} on rank {rank} of {readers.num_ranks}"
                )
        peers = await asyncio.gather(*(transport.connect(sources[each.source]) for each in slices))
        receivers = [
            BlockReceiver(
                transport, peer, pool, block_table, deadline_s, num_known_blocks, each, sources[each.source].checksum
            )
            for peer, each in zip(peers, slices, strict=True)
        ]
        if any(peer not in transport.choices for peer in peers):
            raise PeerLost("the peer ended as soon as it was connected")
        names = {transport.choices[peer].transport for peer in peers}
        return cls(receivers, slices, len(sources), "+".join(sorted(names)))

    @property
    def num_blocks_read(self) -> int:
        """Blocks that are here, checked or not."""
        return min(each.num_blocks_read for each in self._receivers)

    @property
    def num_blocks_expected(self) -> int:
        """Blocks whose checksums are known."""
        return min(each.num_blocks_expected for each in self._receivers)

    @property
    def num_blocks_received(self) -> int:
        """Blocks that are here, whole and checked."""
        return min(each.num_blocks_received for each in self._receivers)

    @property
    def transfer_s(self) -> float:
        """Seconds spent in reads."""
        return max(each.transfer_s for each in self._receivers)

    async def read(self, first_index: int, remote: Sequence[int]) -> None:
        """Reads the peer's blocks `remote`, the same on all of its ranks; see `BlockReceiver.read`."""
        await all_or_none(*(each.read(first_index, remote) for each in self._receivers))

    def expect(self, first_index: int, checksums: Sequence[int]) -> None:
        """Takes checksums of the blocks from `first_index` on: all of one rank of the peer, then all of the next.

        Raises PeerRefused and ChecksumMismatch as `BlockReceiver.expect` does.
        """
        count, rest = divmod(len(checksums), self._num_sources)
        if rest:
            raise PeerRefused(f"{len(checksums)} checksums came of blocks on {self._num_sources} ranks")
        for each, part in zip(self._receivers, self._slices, strict=True):
            each.expect(first_index, checksums[part.source * count : (part.source + 1) * count])

    async def settled(self) -> None:
        """Returns when what was read and expected is compared: at once."""
