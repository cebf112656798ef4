"""All ranks of a worker, as those see them who hand KV over."""

import asyncio
from collections.abc import Sequence
from itertools import chain
from math import gcd

from baton.kvtransfer.all_or_none import all_or_none
from baton.kvtransfer.base import PeerId, PoolDescription, TransportChoice
from baton.kvtransfer.block_slice import PartGroup
from baton.kvtransfer.errors import PeerRefused
from baton.protos import worker_pb2
from baton.rpc.pool_description import pool_from_proto, pool_to_proto
from baton.worker.ranks.base import Rank
from baton.worker.ranks.group_receiver import GroupIntake
from baton.worker.ranks.in_process_rank import LocalRank

MAX_RANKS = 1024


class Ranks:
    """The worker's own rank, the first, and those that follow it, in their order."""

    def __init__(self, own: LocalRank, followers: Sequence[Rank], num_parts: int) -> None:
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
    ) -> GroupIntake:
        """Gets ready to read a peer's ranks; see Rank. Raises TransferError."""
        if not 0 < len(pools) <= MAX_RANKS:
            raise PeerRefused(f"the peer says that it has {len(pools)} pools")
        sources = [pool_from_proto(pool) for pool in pools]
        known = (sources, block_table, num_known_blocks, deadline_s)
        own, others = await asyncio.gather(
            self._own.receive(*known), asyncio.gather(*(each.receive(*known) for each in self._followers))
        )
        return GroupIntake(own, others)

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
