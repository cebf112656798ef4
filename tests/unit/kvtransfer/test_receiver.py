import pytest
import torch
from torch import Tensor

from kvtransfer.base import PoolIdentity
from kvtransfer.checksum import block_checksums
from kvtransfer.errors import ChecksumMismatch, PeerLost, PeerRefused
from kvtransfer.in_memory import InMemoryNetwork, InMemoryTransport
from kvtransfer.receiver import BlockReceiver


class Pair:
    """A pool that is read, and the one that it is read into."""

    def __init__(self, block_elements: int = 64) -> None:
        self.network = InMemoryNetwork()
        self.theirs = torch.arange(16).unsqueeze(1).repeat(1, block_elements)
        self.ours = torch.full((12, block_elements), -1)
        self.owner = InMemoryTransport(PoolIdentity("owner", "model"), self.network)
        self.reader = InMemoryTransport(PoolIdentity("reader", "model"), self.network)
        self.description = self.owner.register_pool(self.theirs)
        self.reader.register_pool(self.ours)

    async def receiver(self, block_table: list[int], num_blocks_received: int = 0) -> BlockReceiver:
        peer = await self.reader.connect(self.description)
        return BlockReceiver(self.reader, peer, self.ours, block_table, 5.0, num_blocks_received)

    def checksums(self, blocks: list[int]) -> list[int]:
        return block_checksums(self.theirs, blocks)


def first_elements(pool: Tensor, blocks: list[int]) -> list[int]:
    return pool[blocks, 0].tolist()


@pytest.mark.parametrize("block_elements", [64, 1 << 16])  # checked at once, and in a thread
async def test_announcements_fill_the_block_table_in_order(block_elements: int) -> None:
    pair = Pair(block_elements)
    receiver = await pair.receiver([7, 3, 9, 0, 1])
    await receiver.receive(0, [15, 2], pair.checksums([15, 2]))
    assert receiver.num_blocks_received == 2
    await receiver.receive(2, [], [])
    await receiver.receive(2, [4, 4, 1], pair.checksums([4, 4, 1]))
    assert receiver.num_blocks_received == 5
    assert first_elements(pair.ours, [7, 3, 9, 0, 1]) == [15, 2, 4, 4, 1]
    assert receiver.transfer_s > 0


async def test_blocks_that_are_here_already_are_not_read_again() -> None:
    pair = Pair()
    receiver = await pair.receiver([0, 1, 2, 3], num_blocks_received=2)
    await receiver.receive(0, [5, 6, 7], pair.checksums([5, 6, 7]))
    assert first_elements(pair.ours, [0, 1, 2, 3]) == [-1, -1, 7, -1]
    await receiver.receive(1, [6, 7], pair.checksums([6, 7]))
    assert receiver.num_blocks_received == 3


async def test_announcements_that_do_not_fit_are_refused() -> None:
    pair = Pair()
    receiver = await pair.receiver([0, 1, 2])
    for first_index, remote, checksums in ((1, [5], [0]), (-1, [5], [0]), (0, [1, 2, 3, 4], [0] * 4), (0, [1], [])):
        with pytest.raises(PeerRefused):
            await receiver.receive(first_index, remote, checksums)
    assert receiver.num_blocks_received == 0
    assert bool((pair.ours == -1).all())


@pytest.mark.parametrize("block_elements", [64, 1 << 16])
async def test_what_came_before_a_wrong_block_counts(block_elements: int) -> None:
    pair = Pair(block_elements)
    receiver = await pair.receiver([3, 4, 5, 6])
    checksums = pair.checksums([8, 9, 10, 11])
    pair.theirs[10, 5] = 99
    with pytest.raises(ChecksumMismatch, match="block 2 of the request, in block 5"):
        await receiver.receive(0, [8, 9, 10, 11], checksums)
    assert receiver.num_blocks_received == 2
    pair.theirs[10, 5] = 10
    await receiver.receive(0, [8, 9, 10, 11], checksums)
    assert receiver.num_blocks_received == 4


async def test_a_lost_peer_leaves_what_came_and_another_goes_on() -> None:
    pair = Pair()
    receiver = await pair.receiver([0, 1, 2])
    await receiver.receive(0, [5], pair.checksums([5]))
    pair.network.kill("owner")
    with pytest.raises(PeerLost):
        await receiver.receive(1, [6, 7], pair.checksums([6, 7]))
    assert receiver.num_blocks_received == 1
    other = InMemoryTransport(PoolIdentity("other", "model"), pair.network)
    peer = await pair.reader.connect(other.register_pool(pair.theirs))
    again = BlockReceiver(pair.reader, peer, pair.ours, [0, 1, 2], 5.0, receiver.num_blocks_received)
    await again.receive(1, [8, 9], pair.checksums([8, 9]))
    assert first_elements(pair.ours, [0, 1, 2]) == [5, 8, 9]


async def test_more_can_be_read_while_something_waits_to_be_checked() -> None:
    pair = Pair()
    receiver = await pair.receiver([0, 1, 2, 3])
    first = await receiver.read(0, [5, 6], pair.checksums([5, 6]))
    second = await receiver.read(2, [7], [0])
    assert (receiver.num_blocks_read, receiver.num_blocks_received) == (3, 0)
    assert first is not None
    assert second is not None
    await receiver.check(first)
    assert receiver.num_blocks_received == 2
    with pytest.raises(ChecksumMismatch, match="block 2 of the request"):
        await receiver.check(second)
    assert (receiver.num_blocks_read, receiver.num_blocks_received) == (2, 2)
