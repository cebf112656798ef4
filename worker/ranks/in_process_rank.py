"""The part of a worker's KV that is in this process."""

import asyncio
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from baton.kvtransfer.base import KVTransport, PeerId, PoolDescription, TransportChoice
from baton.kvtransfer.block_slice import PartGroup
from baton.kvtransfer.checksum.block_checksum import block_checksums, warm_checksums
from baton.kvtransfer.local_pool import block_bytes_of
from baton.kvtransfer.receiver import Intake


class LocalRank:
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
    ) -> Intake:
        """See Rank. Raises what `KVTransport.connect` raises."""
        return await Intake.connect(
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
