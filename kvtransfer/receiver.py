"""Receivers that pull a request's blocks from a peer's ranks, and verify them by checksums."""

import asyncio
import time
from collections.abc import Sequence

from torch import Tensor

from baton.kvtransfer.base import KVTransport, PeerId, PoolDescription, ignore_landed
from baton.kvtransfer.block_slice import WHOLE_BLOCK, BlockSlice, PartGroup, slices_of
from baton.kvtransfer.checksum.block_checksum import XXH3, UnitChecksums
from baton.kvtransfer.errors import ChecksumMismatch, PeerLost, PeerRefused
from baton.kvtransfer.receive import Receiver
from baton.kvtransfer.threads import all_or_none

MAX_READ_BYTES = 64 << 20  # per read; the deadline applies to one read, and a failure loses no more than this


class BlockReceiver:
    """A Receiver from one rank of a peer into one rank's pool.

    The checksum of a unit is computed as it arrives, on a GPU once a whole read of up to 64 MiB has arrived. The peer's
    checksum may be announced before or after that. The blocks before `num_blocks_received` are complete and verified,
    whatever fails later; of a block that is read from several peers, this holds for the part from this one. After an
    error the receiver is unusable, and the request's blocks may be reused only after `transport.quarantine.wait_clear`
    has returned.
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
        num_sources: int = 1,
    ) -> None:
        """`block_table`: ids of the request's blocks in `pool`; the first `num_blocks_received` are already there.

        `deadline_s`: for each read of up to 64 MiB; `block_slice`: the units to read of each block; `checksum_kind`:
        the kind that the peer computes; `num_sources`: ranks of the peer, whose checksums arrive together. Raises
        PeerRefused for a kind that cannot be computed for our pool, and PeerLost if `peer` is not connected any more.
        """
        choice = transport.choices.get(peer)
        if choice is None:
            raise PeerLost("the peer ended as soon as it was connected")
        self.transport = choice.transport
        self._transport = transport
        self._peer = peer
        self._slice = block_slice
        self._num_sources = num_sources
        self._unit_bytes = pool.nbytes // len(pool) // block_slice.local_per_block
        self._checksums = UnitChecksums(pool, self._unit_bytes, checksum_kind)
        self._block_table = list(block_table)
        self._deadline_s = deadline_s
        self._num_known = num_blocks_received
        self._landed: list[int] = []  # checksums of the units read so far, `num_units` per block
        self._announced: list[int] = []  # the peer's checksums of the same units
        self.num_blocks_received = num_blocks_received
        self.transfer_s = 0.0  # spent in reads, checksums excluded

    @property
    def num_blocks_read(self) -> int:
        """Number of blocks in our pool, verified or not."""
        return self._num_known + len(self._landed) // self._slice.num_units

    @property
    def num_blocks_expected(self) -> int:
        """Number of blocks whose checksums were announced."""
        return self._num_known + len(self._announced) // self._slice.num_units

    async def read(self, first_index: int, remote: Sequence[int]) -> None:
        """Read the peer's blocks `remote` into the block table's entries from `first_index` on.

        Raises what `KVTransport.read` raises, PeerRefused for an announcement that leaves a gap or exceeds the block
        table, and ChecksumMismatch.
        """
        num_here = self._num_here(first_index, len(remote), self.num_blocks_read)
        remote = remote[num_here:]
        step = max(1, MAX_READ_BYTES // (self._unit_bytes * self._slice.num_units))
        for start in range(0, len(remote), step):
            await self._read_once(remote[start : start + step])
            self._compare()

    def expect(self, first_index: int, checksums: Sequence[int]) -> None:
        """Record the announced checksums of the blocks from `first_index` on, one per unit of the peer's blocks.

        Those of all blocks on the peer's rank 0 are followed by those on rank 1, etc. Raises PeerRefused if they leave
        a gap or exceed the block table, and ChecksumMismatch.
        """
        num_units, rest = divmod(len(checksums), self._num_sources)
        if rest:
            raise PeerRefused(f"received {len(checksums)} checksums of blocks on {self._num_sources} ranks")
        count, rest = divmod(num_units, self._slice.remote_per_block)
        if rest:
            raise PeerRefused(f"received {num_units} checksums of blocks of {self._slice.remote_per_block} units each")
        num_here = self._num_here(first_index, count, self.num_blocks_expected)
        part = self._slice.pairs(range(num_here, count), ())
        first = self._slice.source * num_units
        self._announced += [checksums[first + unit] for unit in part.remote]
        self._compare()

    async def settled(self) -> None:
        """Return at once: `read` and `expect` have compared the blocks already."""

    def _num_here(self, first_index: int, count: int, num_blocks: int) -> int:
        """Return how many of the announced blocks come before block `num_blocks`, the next one needed."""
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
            new_units = units.local[len(checksums) : len(checksums) + num_units]
            checksums.extend(self._checksums.of(new_units))
            checksums_s += time.perf_counter() - started

        on_landed = ignore_landed if self._checksums.is_on_gpu else landed
        started = time.perf_counter()
        try:
            await self._transport.read(self._peer, units.remote, units.local, self._deadline_s, on_landed)
        finally:
            self.transfer_s += time.perf_counter() - started - checksums_s
        if self._checksums.is_on_gpu:
            checksums = await asyncio.to_thread(self._checksums.of, units.local)
        self._landed += checksums

    def _compare(self) -> None:
        """Advance `num_blocks_received` over blocks with the announced checksum. Raises ChecksumMismatch otherwise."""
        count = self._slice.num_units
        num_comparable = min(self.num_blocks_read, self.num_blocks_expected)
        for index in range(self.num_blocks_received, num_comparable):
            units = slice((index - self._num_known) * count, (index - self._num_known + 1) * count)
            if self._landed[units] != self._announced[units]:
                raise ChecksumMismatch(
                    f"block {index} of the request, in block {self._block_table[index]}, does not have the checksum "
                    f"that peer {self._peer} announced"
                )
            self.num_blocks_received += 1


class GroupReceiver:
    """Receivers of the parts of the same blocks, on one rank or several; a block counts once all of its parts do.

    After an error it is unusable; see `BlockReceiver`.
    """

    def __init__(self, own: "BlockReceiver | GroupReceiver", others: Sequence[Receiver]) -> None:
        """`own`: a receiver in this process."""
        self._own = own
        self._all: list[Receiver] = [own, *others]

    @property
    def transport(self) -> str:
        """Names of the transports in use, joined by `+`."""
        return "+".join(sorted({name for each in self._all for name in each.transport.split("+")}))

    @property
    def num_blocks_read(self) -> int:
        """Blocks of which every part is read, checked or not."""
        return min(each.num_blocks_read for each in self._all)

    @property
    def num_blocks_expected(self) -> int:
        """Number of blocks whose checksums were announced; all receivers get them at the same time."""
        return self._own.num_blocks_expected

    @property
    def num_blocks_received(self) -> int:
        """Blocks of which every part is read and checked."""
        return min(each.num_blocks_received for each in self._all)

    @property
    def transfer_s(self) -> float:
        """Seconds that the slowest receiver spent in reads, checksums excluded."""
        return max(each.transfer_s for each in self._all)

    async def read(self, first_index: int, remote: Sequence[int]) -> None:
        """Read all parts of blocks; see Receiver."""
        await all_or_none(*(each.read(first_index, remote) for each in self._all))

    def expect(self, first_index: int, checksums: Sequence[int]) -> None:
        """Record the checksums of all parts of blocks; see Receiver."""
        for each in self._all:
            each.expect(first_index, checksums)

    async def settled(self) -> None:
        """Return when all parts have been compared. Raises TransferError."""
        await all_or_none(*(each.settled() for each in self._all))


async def open_receiver(
    transport: KVTransport,
    pool: Tensor,
    sources: Sequence[PoolDescription],
    readers: PartGroup,
    rank: int,
    block_table: Sequence[int],
    num_known_blocks: int,
    deadline_s: float,
) -> BlockReceiver | GroupReceiver:
    """Connect to `sources`, the pools of the peer's ranks, to read them into the pool of rank `rank` of `readers`.

    The first `num_known_blocks` of the block table are in the pool already; `deadline_s`: for each read of up to
    64 MiB. Raises what `KVTransport.connect` raises.
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
                f"a block of rank {each.source} of {len(sources)} has {theirs} bytes, which does not match our "
                f"{ours} on rank {rank} of {readers.num_ranks}"
            )
    peers = await asyncio.gather(*(transport.connect(sources[each.source]) for each in slices))
    own, *others = (
        BlockReceiver(
            transport,
            peer,
            pool,
            block_table,
            deadline_s,
            num_known_blocks,
            each,
            sources[each.source].checksum,
            len(sources),
        )
        for peer, each in zip(peers, slices, strict=True)
    )
    return GroupReceiver(own, others) if others else own
