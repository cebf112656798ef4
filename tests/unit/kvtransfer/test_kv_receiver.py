"""Blocks read from several ranks of a peer: received once all parts are, and not after a failure."""

import asyncio

import pytest
import torch
from torch import Tensor

from baton.kvtransfer.base import KVTransport, PeerId, PoolIdentity
from baton.kvtransfer.block_slice import PartGroup
from baton.kvtransfer.checksum.block_checksum import block_checksums
from baton.kvtransfer.errors import ChecksumMismatch, PeerLost, PeerRefused
from baton.kvtransfer.in_memory import InMemoryNetwork, InMemoryTransport
from baton.kvtransfer.receiver import open_receiver

NUM_BLOCKS, WORDS = 6, 8


class Peer:
    """A worker's ranks, each with its parts of blocks of distinct numbers."""

    def __init__(self, ranks: PartGroup, network: InMemoryNetwork) -> None:
        self.blocks = torch.arange(NUM_BLOCKS * ranks.num_parts * WORDS).view(NUM_BLOCKS, ranks.num_parts, WORDS)
        self.pools = [share(self.blocks, ranks, rank) for rank in range(ranks.num_ranks)]
        self.transports = [
            InMemoryTransport(PoolIdentity(f"peer-{rank}", "model"), network) for rank in range(ranks.num_ranks)
        ]
        self.descriptions = [
            transport.register_pool(pool) for transport, pool in zip(self.transports, self.pools, strict=True)
        ]

    def checksums(self, blocks: list[int], units: int) -> list[int]:
        """Return the checksums of all blocks on the first rank, then on the next."""
        return [each for pool in self.pools for each in block_checksums(pool, blocks, units)]


def share(blocks: Tensor, ranks: PartGroup, rank: int) -> Tensor:
    first = ranks.first_part(rank)
    return blocks[:, first : first + ranks.parts_per_rank].contiguous()


def reading_rank(ranks: PartGroup, rank: int, network: InMemoryNetwork) -> tuple[KVTransport, Tensor]:
    reader = InMemoryTransport(PoolIdentity(f"reader-{rank}", "model"), network)
    ours = torch.full((NUM_BLOCKS, ranks.parts_per_rank, WORDS), -1)
    reader.register_pool(ours)
    return reader, ours


@pytest.mark.parametrize(
    ("num_parts", "num_sources", "num_readers", "units"), [(4, 4, 2, 1), (4, 2, 4, 2), (4, 2, 2, 1), (1, 2, 2, 1)]
)
async def test_every_rank_gets_its_parts(num_parts: int, num_sources: int, num_readers: int, units: int) -> None:
    network = InMemoryNetwork()
    readers = PartGroup(num_parts, num_readers)
    peer = Peer(PartGroup(num_parts, num_sources), network)
    for rank in range(num_readers):
        reader, ours = reading_rank(readers, rank, network)
        intake = await open_receiver(reader, ours, peer.descriptions, readers, rank, [5, 1, 2], 1, 5.0)
        await intake.read(1, [4])
        assert (intake.num_blocks_read, intake.num_blocks_expected, intake.num_blocks_received) == (2, 1, 1)
        intake.expect(1, peer.checksums([4, 0], units))
        assert (intake.num_blocks_expected, intake.num_blocks_received) == (3, 2)
        await intake.read(2, [0])
        await intake.settled()
        assert intake.num_blocks_received == 3
        assert intake.transport == "in_memory"
        expected = torch.full_like(ours, -1)
        expected[[1, 2]] = share(peer.blocks, readers, rank)[[4, 0]]
        assert torch.equal(ours, expected)


async def test_a_block_counts_once_it_is_complete() -> None:
    network = InMemoryNetwork()
    readers = PartGroup(2, 1)
    peer = Peer(PartGroup(2, 2), network)
    reader, ours = reading_rank(readers, 0, network)
    intake = await open_receiver(reader, ours, peer.descriptions, readers, 0, [3, 4], 0, 5.0)
    wrong = peer.checksums([0, 1], 1)
    wrong[3] ^= 1  # the second rank's, of the second block
    await intake.read(0, [0, 1])
    with pytest.raises(ChecksumMismatch, match=r"block 1 of the request.*peer-1"):
        intake.expect(0, wrong)
    assert intake.num_blocks_received == 1


async def test_a_lost_rank_ends_the_reads_from_the_others() -> None:
    network = InMemoryNetwork()
    readers = PartGroup(2, 1)
    peer = Peer(PartGroup(2, 2), network)
    reader, ours = reading_rank(readers, 0, network)
    intake = await open_receiver(reader, ours, peer.descriptions, readers, 0, [3, 4], 0, 5.0)
    await peer.transports[1].close()
    with pytest.raises(PeerLost):
        await intake.read(0, [0, 1])
    assert intake.num_blocks_received == 0
    await asyncio.wait_for(reader.quarantine.wait_clear([3, 4]), 5)


async def test_a_mismatch_with_the_peers_ranks_is_refused() -> None:
    network = InMemoryNetwork()
    readers = PartGroup(4, 2)
    peer = Peer(PartGroup(4, 2), network)
    reader, ours = reading_rank(readers, 0, network)
    with pytest.raises(PeerRefused, match="4 parts of a block cannot be divided among 3 ranks"):
        await open_receiver(reader, ours, [*peer.descriptions, peer.descriptions[0]], readers, 0, [0], 0, 5.0)
    intake = await open_receiver(reader, ours, peer.descriptions, readers, 0, [0, 1], 0, 5.0)
    with pytest.raises(PeerRefused, match="received 3 checksums of blocks on 2 ranks"):
        intake.expect(0, [1, 2, 3])
    assert PeerId("peer-1") not in reader.choices  # this rank reads nothing from it
