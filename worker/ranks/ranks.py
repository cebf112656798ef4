"""A worker's ranks as seen by KV transfer: pools, receives, checksums."""

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


class BlockReceiver(Protocol):
    """The receive of one request's blocks into one rank's pool; it has the calls and errors of `KVReceiver`."""

    @property
    def transport(self) -> str:
        """Names of the transports in use, joined by `+`."""
        ...

    @property
    def num_blocks_read(self) -> int:
        """Blocks read, checked or not."""
        ...

    @property
    def num_blocks_received(self) -> int:
        """Blocks read and checked."""
        ...

    @property
    def transfer_s(self) -> float:
        """Seconds spent reading."""
        ...

    async def read(self, first_index: int, remote: Sequence[int]) -> None:
        """Read the peer's blocks into the block table from `first_index` on."""
        ...

    def expect(self, first_index: int, checksums: Sequence[int]) -> None:
        """Set the checksums of the blocks from `first_index` on."""
        ...

    async def settled(self) -> None:
        """Return when all blocks that are read and have a checksum have been compared. Raises TransferError."""
        ...


class Rank(Protocol):
    """One rank's shard of the worker's KV. A block has the same id on all ranks."""

    @property
    def pool(self) -> PoolDescription:
        """How peers read this rank's pool."""
        ...

    @property
    def choices(self) -> Mapping[PeerId, TransportChoice]:
        """Transport in use for each peer."""
        ...

    async def receive(
        self, sources: Sequence[PoolDescription], block_table: Sequence[int], num_known_blocks: int, deadline_s: float
    ) -> BlockReceiver:
        """Connect to a peer's ranks, to read into `block_table`. The first `num_known_blocks` already have their KV."""
        ...

    async def checksums(self, blocks: Sequence[int], units_per_block: int) -> Sequence[int]:
        """Return checksums in the order of `blocks`, `units_per_block` for each block."""
        ...

    async def clear(self, blocks: Sequence[int], wiped: Sequence[int] = ()) -> None:
        """Return once no abandoned read can write into `blocks` any more, and `wiped` are zeroed."""
        ...


class InProcessRank:
    """The rank of this process and its registered pool. Receives must have ended before their blocks are cleared."""

    def __init__(self, transport: KVTransport, pool: Tensor, ranks: PartGroup, rank: int = 0) -> None:
        """ranks: of this worker; rank: number of this one."""
        warm_checksums(pool)
        self.pool: PoolDescription = transport.register_pool(pool)
        self._transport = transport
        self._tensor = pool
        self._ranks = ranks
        self._rank = rank

    @property
    def choices(self) -> Mapping[PeerId, TransportChoice]:
        """Transport in use for each peer."""
        return self._transport.choices

    async def receive(
        self, sources: Sequence[PoolDescription], block_table: Sequence[int], num_known_blocks: int, deadline_s: float
    ) -> KVReceiver:
        """Connect to a peer's ranks; see Rank. Raises the errors of `KVTransport.connect`."""
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
        """Return checksums, `units_per_block` for each block."""
        return await asyncio.to_thread(block_checksums, self._tensor, blocks, units_per_block)

    async def clear(self, blocks: Sequence[int], wiped: Sequence[int] = ()) -> None:
        """Return once no abandoned read can write into `blocks`, and `wiped` are zeroed."""
        await self._transport.quarantine.wait_clear(blocks)
        if wiped:
            await asyncio.to_thread(wipe, self._tensor, wiped)


def wipe(pool: Tensor, blocks: Sequence[int]) -> None:
    """Zero blocks of a pool; on a GPU, return after the work is done."""
    if pool.device.type == "cpu":
        memory = block_bytes_of(pool)  # numpy: torch would start a team of threads for each calling thread
        for block in blocks:
            memory[block] = 0
        return
    rows = pool.detach().view(torch.uint8).view(len(pool), -1)
    for block in blocks:
        rows[block] = 0
    torch.cuda.current_stream(pool.device).synchronize()


class GroupReceiver:
    """The receive of one request's blocks into all ranks; a block counts once every rank has it."""

    def __init__(self, own: KVReceiver, others: Sequence[BlockReceiver] = ()) -> None:
        """own: of the first rank, which is this process."""
        self._own = own
        self._all: list[BlockReceiver] = [own, *others]

    @property
    def transport(self) -> str:
        """Names of the transports of all ranks, joined by `+`."""
        return "+".join(sorted({name for each in self._all for name in each.transport.split("+")}))

    @property
    def num_blocks_read(self) -> int:
        """Blocks read by all ranks, checked or not."""
        return min(each.num_blocks_read for each in self._all)

    @property
    def num_blocks_expected(self) -> int:
        """Blocks whose checksums are known; all ranks get them at the same time."""
        return self._own.num_blocks_expected

    @property
    def num_blocks_announced(self) -> int:
        """Blocks read whose checksums are known, but perhaps not compared on every rank."""
        return min(self.num_blocks_read, self.num_blocks_expected)

    @property
    def num_blocks_received(self) -> int:
        """Blocks read and checked by all ranks."""
        return min(each.num_blocks_received for each in self._all)

    @property
    def transfer_s(self) -> float:
        """Seconds that the slowest rank spent reading."""
        return max(each.transfer_s for each in self._all)

    async def read(self, first_index: int, remote: Sequence[int]) -> None:
        """Read blocks on every rank; see BlockReceiver."""
        await all_or_none(*(each.read(first_index, remote) for each in self._all))

    def expect(self, first_index: int, checksums: Sequence[int]) -> None:
        """Set checksums on every rank; see BlockReceiver."""
        for each in self._all:
            each.expect(first_index, checksums)

    async def settled(self) -> None:
        """Return when every rank has compared its blocks. Raises TransferError."""
        await all_or_none(*(each.settled() for each in self._all))


MAX_RANKS = 1024


class Ranks:
    """All ranks of a worker: the first, which is this process, and its followers in order."""

    def __init__(self, own: InProcessRank, followers: Sequence[Rank], num_parts: int) -> None:
        """num_parts: parts into which a block of the whole model can be divided."""
        self._own = own
        self._followers = list(followers)
        self._all: list[Rank] = [own, *followers]
        self._parts = PartGroup(num_parts, len(self._all))

    @property
    def pool(self) -> PoolDescription:
        """Pool of the first rank, whose incarnation is also the worker's."""
        return self._own.pool

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self._all)

    @property
    def block_bytes(self) -> int:
        """Bytes of a block over all ranks."""
        return sum(each.pool.block_bytes for each in self._all)

    @property
    def choices(self) -> dict[PeerId, TransportChoice]:
        """Transport in use for each rank of a peer; if several of our ranks read from it, that of any of them."""
        return dict(chain.from_iterable(each.choices.items() for each in self._all))

    def describe(self) -> list[worker_pb2.KVPool]:
        """Return the pool descriptions for peers, in rank order."""
        return [pool_to_proto(each.pool) for each in self._all]

    async def receive(
        self, pools: Sequence[worker_pb2.KVPool], block_table: Sequence[int], num_known_blocks: int, deadline_s: float
    ) -> GroupReceiver:
        """Connect every rank to a peer's ranks; see Rank. Raises TransferError."""
        if not 0 < len(pools) <= MAX_RANKS:
            raise PeerRefused(f"the peer describes {len(pools)} pools; expected 1 to {MAX_RANKS}")
        sources = [pool_from_proto(pool) for pool in pools]
        known = (sources, block_table, num_known_blocks, deadline_s)
        own, others = await asyncio.gather(
            self._own.receive(*known), asyncio.gather(*(each.receive(*known) for each in self._followers))
        )
        return GroupReceiver(own, others)

    async def checksums(self, blocks: Sequence[int], units_per_block: int) -> list[int]:
        """Return checksums of blocks: all of the first rank, then all of the next."""
        checksums = await asyncio.gather(*(each.checksums(blocks, units_per_block) for each in self._all))
        return list(chain.from_iterable(checksums))

    def units_for(self, num_readers: int) -> int:
        """Return the checksum units of a block on each rank, for a reader with `num_readers` ranks.

        Raises ValueError if blocks cannot be divided among that many ranks.
        """
        if num_readers > MAX_RANKS:
            raise ValueError(f"{num_readers} ranks exceed the limit of {MAX_RANKS}")
        readers = PartGroup(self._parts.num_parts, num_readers)
        return self._parts.parts_per_rank // gcd(self._parts.parts_per_rank, readers.parts_per_rank)

    async def clear(self, blocks: Sequence[int], wiped: Sequence[int] = ()) -> None:
        """Clear blocks on every rank; see Rank."""
        await all_or_none(*(each.clear(blocks, wiped) for each in self._all))
