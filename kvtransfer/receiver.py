"""A request's blocks on their way into one rank's pool, from all ranks of a peer that have parts of them."""

import asyncio
from collections.abc import Sequence

from torch import Tensor

from baton.kvtransfer.all_or_none import all_or_none
from baton.kvtransfer.base import KVTransport, PoolDescription
from baton.kvtransfer.block_receiver import BlockReceiver
from baton.kvtransfer.block_slice import BlockSlice, PartGroup, slices_of
from baton.kvtransfer.errors import PeerLost, PeerRefused


class Intake:
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
    ) -> "Intake":
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
