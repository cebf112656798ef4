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
from baton.kvtransfer.receive import Receiver
from baton.kvtransfer.receiver import BlockReceiver, GroupReceiver, open_receiver
from baton.kvtransfer.threads import all_or_none
from baton.protos import worker_pb2
from baton.rpc.pool_description import pool_from_proto, pool_to_proto


class Rank(Protocol):
    """A follower rank with its shard of the worker's KV. A block has the same id on all ranks."""

    @property
    def pool(self) -> PoolDescription:
        """How peers read this rank's pool."""
        ...

    @property
    def choices(self) -> Mapping[PeerId, TransportChoice]:
        """Transport in use for each peer."""
        ...

    async def receive(
        self, pools: Sequence[worker_pb2.KVPool], block_table: Sequence[int], num_known_blocks: int, deadline_s: float
    ) -> Receiver:
        """Connect to a peer's ranks, to read into `block_table`. The first `num_known_blocks` already have their KV."""
        ...

    async def checksums(self, blocks: Sequence[int], units_per_block: int) -> Sequence[int]:
        """Return checksums in the order of `blocks`, `units_per_block` for each block."""
        ...

    async def clear(self, blocks: Sequence[int], wiped: Sequence[int] = ()) -> None:
        """Return once no abandoned read can write into `blocks` any more, and `wiped` are zeroed."""
        ...


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


MAX_RANKS = 1024


class Ranks:
    """The KV of a worker's ranks: the pool of this process's rank and, on the first rank, the followers in order.

    Receives must have ended before their blocks are cleared.
    """

    def __init__(
        self, transport: KVTransport, pool: Tensor, parts: PartGroup, rank: int = 0, followers: Sequence[Rank] = ()
    ) -> None:
        """Register `pool`, the shard of rank number `rank`; parts: how the worker's ranks divide a block."""
        warm_checksums(pool)
        self.pool: PoolDescription = transport.register_pool(pool)  # its incarnation is also the worker's first
        self._transport = transport
        self._tensor = pool
        self.parts = parts  # how the worker's ranks divide a block
        self._rank = rank
        self._followers = list(followers)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.parts.num_ranks

    @property
    def block_bytes(self) -> int:
        """Bytes of a block over all ranks."""
        return sum(pool.block_bytes for pool in self._pools())

    @property
    def choices(self) -> dict[PeerId, TransportChoice]:
        """Transport in use for each rank of a peer; if several of our ranks read from it, that of any of them."""
        return dict(chain(self._transport.choices.items(), *(each.choices.items() for each in self._followers)))

    def describe(self) -> list[worker_pb2.KVPool]:
        """Return the pool descriptions for peers, in rank order."""
        return [pool_to_proto(pool) for pool in self._pools()]

    async def receive(
        self, pools: Sequence[worker_pb2.KVPool], block_table: Sequence[int], num_known_blocks: int, deadline_s: float
    ) -> BlockReceiver | GroupReceiver:
        """Connect every rank to a peer's ranks; see Rank. Raises TransferError."""
        if not 0 < len(pools) <= MAX_RANKS:
            raise PeerRefused(f"the peer describes {len(pools)} pools; expected 1 to {MAX_RANKS}")
        sources = [pool_from_proto(pool) for pool in pools]
        known = (block_table, num_known_blocks, deadline_s)
        opening = open_receiver(self._transport, self._tensor, sources, self.parts, self._rank, *known)
        if not self._followers:
            return await opening
        others = asyncio.gather(*(each.receive(pools, *known) for each in self._followers))
        return GroupReceiver(*await asyncio.gather(opening, others))

    async def checksums(self, blocks: Sequence[int], units_per_block: int) -> list[int]:
        """Return checksums of blocks: all of the first rank, then all of the next."""
        computing = asyncio.to_thread(block_checksums, self._tensor, blocks, units_per_block)
        checksums = await asyncio.gather(
            computing, *(each.checksums(blocks, units_per_block) for each in self._followers)
        )
        return list(chain.from_iterable(checksums))

    def units_for(self, num_readers: int) -> int:
        """Return the checksum units of a block on each rank, for a reader with `num_readers` ranks.

        Raises ValueError if blocks cannot be divided among that many ranks.
        """
        if num_readers > MAX_RANKS:
            raise ValueError(f"{num_readers} ranks exceed the limit of {MAX_RANKS}")
        readers = PartGroup(self.parts.num_parts, num_readers)
        return self.parts.parts_per_rank // gcd(self.parts.parts_per_rank, readers.parts_per_rank)

    async def clear(self, blocks: Sequence[int], wiped: Sequence[int] = ()) -> None:
        """Return once no abandoned read can write into `blocks` on any rank, and `wiped` are zeroed."""
        await all_or_none(self._clear(blocks, wiped), *(each.clear(blocks, wiped) for each in self._followers))

    async def _clear(self, blocks: Sequence[int], wiped: Sequence[int]) -> None:
        await self._transport.quarantine.wait_clear(blocks)
        if wiped:
            await asyncio.to_thread(wipe, self._tensor, wiped)

    def _pools(self) -> list[PoolDescription]:
        return [self.pool, *(each.pool for each in self._followers)]
