"""All ranks of a worker, as those see them who hand KV over."""

import asyncio
from collections.abc import Mapping, Sequence
from itertools import chain
from math import gcd
from typing import Protocol

import torch
from torch import Tensor

from baton.kvtransfer.base import KVTransport, PeerId, PoolDescription, TransportChoice
from baton.kvtransfer.block_slice import PartGroup
from baton.kvtransfer.checksum.block_checksum import block_checksums, warm_checksums
from baton.kvtransfer.errors import PeerRefused
from baton.kvtransfer.local_pool import block_bytes_of
from baton.kvtransfer.receiver import KVReceiver
from baton.kvtransfer.threads import all_or_none
from baton.protos import worker_pb2
from baton.rpc.pool_description import pool_from_proto, pool_to_proto


class BlockIntake(Protocol):
    """A request's blocks on their way into a rank; the same calls as `KVReceiver`, with the same errors."""

    @property
    def transport(self) -> str:
        """Names of the transports that they come over."""
        ...

    @property
    def num_blocks_read(self) -> int:
        """Blocks that are here, checked or not."""
        ...

    @property
    def num_blocks_received(self) -> int:
        """Blocks that are here, whole and checked."""
        ...

    @property
    def transfer_s(self) -> float:
        """Seconds spent in reads."""
        ...

    async def read(self, first_index: int, remote: Sequence[int]) -> None:
        """Reads the peer's blocks, which stand in the block table from `first_index` on."""
        ...

    def expect(self, first_index: int, checksums: Sequence[int]) -> None:
        """Takes checksums of the blocks from `first_index` on."""
        ...

    async def settled(self) -> None:
        """Returns when all that was read and expected is compared. Raises what was wrong."""
        ...


class Rank(Protocol):
    """One rank's part of the worker's KV. Blocks have the same ids on all ranks."""

    @property
    def pool(self) -> PoolDescription:
        """How peers read it."""
        ...

    @property
    def choices(self) -> Mapping[PeerId, TransportChoice]:
        """The transport in use for each peer."""
        ...

    async def receive(
        self, sources: Sequence[PoolDescription], block_table: Sequence[int], num_known_blocks: int, deadline_s: float
    ) -> BlockIntake:
        """Gets ready to read a peer's ranks into blocks of which the first `num_known_blocks` are here already."""
        ...

    async def checksums(self, blocks: Sequence[int], units_per_block: int) -> Sequence[int]:
        """Checksums of blocks, in order; of each block one for every unit of it."""
        ...

    async def clear(self, blocks: Sequence[int], wiped: Sequence[int] = ()) -> None:
        """Returns once nothing can be written into `blocks` any more, by reads that were given up; zeroes `wiped`."""
        ...


class InProcessRank:
    """Owns the registration of a pool with its transport. Who reads with it ends that before blocks are cleared."""

    def __init__(self, transport: KVTransport, pool: Tensor, ranks: PartGroup, rank: int = 0) -> None:
        """ranks: all of this worker; rank: our place among them."""
        warm_checksums(pool)
        self.pool: PoolDescription = transport.register_pool(pool)
        self._transport = transport
        self._tensor = pool
        self._ranks = ranks
        self._rank = rank

    @property
    def choices(self) -> Mapping[PeerId, TransportChoice]:
        """See Rank."""
        return self._transport.choices

    async def receive(
        self, sources: Sequence[PoolDescription], block_table: Sequence[int], num_known_blocks: int, deadline_s: float
    ) -> KVReceiver:
        """See Rank. Raises what `KVTransport.connect` raises."""
        return await KVReceiver.connect(
            self._transport,
            self._tensor,
            sources,
            self._ranks,
            self._rank,
            block_table,
            num_known_blocks,
            deadline_s,
        )

    async def checksums(self, blocks: Sequence[int], units_per_block: int) -> list[int]:
        """See Rank."""
        return await asyncio.to_thread(block_checksums, self._tensor, blocks, units_per_block)

    async def clear(self, blocks: Sequence[int], wiped: Sequence[int] = ()) -> None:
        """See Rank."""
        await self._transport.quarantine.wait_clear(blocks)
        if wiped:
            await asyncio.to_thread(wipe, self._tensor, wiped)


def wipe(pool: Tensor, blocks: Sequence[int]) -> None:
    """Makes blocks zero; a GPU has done so when it returns."""
    if pool.device.type == "cpu":
        memory = block_bytes_of(pool)  # by numpy: torch would start threads for it, a team for each thread that asks
        for block in blocks:
            memory[block] = 0
        return
    rows = pool.detach().view(torch.uint8).view(len(pool), -1)
    for block in blocks:
        rows[block] = 0
    torch.cuda.current_stream(pool.device).synchronize()


class GroupReceiver:
    """What every rank receives; a block is here once it is on all of them. See `BlockIntake`."""

    def __init__(self, own: KVReceiver, others: Sequence[BlockIntake] = ()) -> None:
        """own: the first rank's, which is in this process."""
        self._own = own
        self._all: list[BlockIntake] = [own, *others]

    @property
    def transport(self) -> str:
        """See BlockIntake."""
        return "+".join(sorted({name for each in self._all for name in each.transport.split("+")}))

    @property
    def num_blocks_read(self) -> int:
        """See BlockIntake."""
        return min(each.num_blocks_read for each in self._all)

    @property
    def num_blocks_expected(self) -> int:
        """Blocks whose checksums are known; all ranks are told them at once."""
        return self._own.num_blocks_expected

    @property
    def num_blocks_announced(self) -> int:
        """Blocks that are here and whose checksums are known, though perhaps not compared everywhere."""
        return min(self.num_blocks_read, self.num_blocks_expected)

    @property
    def num_blocks_received(self) -> int:
        """See BlockIntake."""
        return min(each.num_blocks_received for each in self._all)

    @property
    def transfer_s(self) -> float:
        """Of the slowest rank."""
        return max(each.transfer_s for each in self._all)

    async def read(self, first_index: int, remote: Sequence[int]) -> None:
        """See BlockIntake."""
        await all_or_none(*(each.read(first_index, remote) for each in self._all))

    def expect(self, first_index: int, checksums: Sequence[int]) -> None:
        """See BlockIntake."""
        for each in self._all:
            each.expect(first_index, checksums)

    async def settled(self) -> None:
        """See BlockIntake."""
        await all_or_none(*(each.settled() for each in self._all))


MAX_RANKS = 1024


class Ranks:
    """The worker's own rank, the first, and those that follow it, in their order."""

    def __init__(self, own: InProcessRank, followers: Sequence[Rank], num_parts: int) -> None:
        """num_parts: of a block of the whole model."""
        self._own = own
        self._followers = list(followers)
        self._all: list[Rank] = [own, *followers]
        self._parts = PartGroup(num_parts, len(self._all))

    @property
    def pool(self) -> PoolDescription:
        """The first rank's; its incarnation is the worker's."""
        return self._own.pool

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self._all)

    @property
    def block_bytes(self) -> int:
        """Bytes of a block, on all ranks together."""
        return sum(each.pool.block_bytes for each in self._all)

    @property
    def choices(self) -> dict[PeerId, TransportChoice]:
        """The transport in use for each peer's rank; where several of our ranks read it, any one's of them."""
        return dict(chain.from_iterable(each.choices.items() for each in self._all))

    def describe(self) -> list[worker_pb2.KVPool]:
        """How peers read the pools, in the ranks' order."""
        return [pool_to_proto(each.pool) for each in self._all]

    async def receive(
        self, pools: Sequence[worker_pb2.KVPool], block_table: Sequence[int], num_known_blocks: int, deadline_s: float
    ) -> GroupReceiver:
        """Gets ready to read a peer's ranks; see Rank. Raises TransferError."""
        if not 0 < len(pools) <= MAX_RANKS:
            raise PeerRefused(f"the peer says that it has {len(pools)} pools")
        sources = [pool_from_proto(pool) for pool in pools]
        known = (sources, block_table, num_known_blocks, deadline_s)
        own, others = await asyncio.gather(
            self._own.receive(*known), asyncio.gather(*(each.receive(*known) for each in self._followers))
        )
        return GroupReceiver(own, others)

    async def checksums(self, blocks: Sequence[int], units_per_block: int) -> list[int]:
        """Checksums of blocks: all of the first rank, then all of the next."""
        checksums = await asyncio.gather(*(each.checksums(blocks, units_per_block) for each in self._all))
        return list(chain.from_iterable(checksums))

    def units_for(self, num_readers: int) -> int:
        """Units that a block has on each rank for a worker of so many ranks that reads it.

        Raises ValueError for a number of ranks that blocks cannot be divided among.
        """
        if num_readers > MAX_RANKS:
            raise ValueError(f"{num_readers} ranks are more than {MAX_RANKS}")
        readers = PartGroup(self._parts.num_parts, num_readers)
        return self._parts.parts_per_rank // gcd(self._parts.parts_per_rank, readers.parts_per_rank)

    async def clear(self, blocks: Sequence[int], wiped: Sequence[int] = ()) -> None:
        """See Rank; on all of them."""
        await all_or_none(*(each.clear(blocks, wiped) for each in self._all))
