import asyncio

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


async def test_announcements_fill_the_block_table_in_order() -> None:
    pair = Pair()
    receiver = await pair.receiver([7, 3, 9, 0, 1])
    await receiver.read(0, [15, 2])
    receiver.expect(0, pair.checksums([15, 2]))
    assert receiver.num_blocks_received == 2
    await receiver.read(2, [])
    await receiver.read(2, [4, 4, 1])
    receiver.expect(2, pair.checksums([4, 4, 1]))
    assert receiver.num_blocks_received == 5
    assert first_elements(pair.ours, [7, 3, 9, 0, 1]) == [15, 2, 4, 4, 1]
    assert receiver.transfer_s > 0


async def test_only_what_is_both_read_and_expected_counts() -> None:
    pair = Pair()
    receiver = await pair.receiver([0, 1, 2, 3])
    receiver.expect(0, pair.checksums([5, 6]))
    assert (receiver.num_blocks_read, receiver.num_blocks_expected, receiver.num_blocks_received) == (0, 2, 0)
    await receiver.read(0, [5, 6, 7, 8])
    assert (receiver.num_blocks_read, receiver.num_blocks_expected, receiver.num_blocks_received) == (4, 2, 2)
    receiver.expect(2, pair.checksums([7]))
    assert receiver.num_blocks_received == 3


async def test_blocks_that_are_here_already_are_not_read_again() -> None:
    pair = Pair()
    receiver = await pair.receiver([0, 1, 2, 3], num_blocks_received=2)
    await receiver.read(0, [5, 6, 7])
    receiver.expect(0, pair.checksums([5, 6, 7]))
    assert first_elements(pair.ours, [0, 1, 2, 3]) == [-1, -1, 7, -1]
    await receiver.read(1, [6, 7])
    receiver.expect(1, pair.checksums([6, 7]))
    assert receiver.num_blocks_received == 3


async def test_announcements_that_do_not_fit_are_refused() -> None:
    pair = Pair()
    receiver = await pair.receiver([0, 1, 2])
    for first_index, blocks in ((1, [5]), (-1, [5]), (0, [1, 2, 3, 4])):
        with pytest.raises(PeerRefused):
            await receiver.read(first_index, blocks)
        with pytest.raises(PeerRefused):
            receiver.expect(first_index, pair.checksums(blocks))
    assert receiver.num_blocks_received == 0
    assert bool((pair.ours == -1).all())


@pytest.mark.parametrize("reads_first", [True, False])
async def test_what_came_before_a_wrong_block_counts(reads_first: bool) -> None:
    pair = Pair()
    receiver = await pair.receiver([3, 4, 5, 6])
    checksums = pair.checksums([8, 9, 10, 11])
    pair.theirs[10, 5] = 99
    if reads_first:
        await receiver.read(0, [8, 9, 10, 11])
        with pytest.raises(ChecksumMismatch, match="block 2 of the request, in block 5"):
            receiver.expect(0, checksums)
    else:
        receiver.expect(0, checksums)
        with pytest.raises(ChecksumMismatch, match="block 2 of the request, in block 5"):
            await receiver.read(0, [8, 9, 10, 11])
    assert receiver.num_blocks_received == 2


async def test_a_lost_peer_leaves_what_came_and_another_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair()
    monkeypatch.setattr("kvtransfer.receiver.MAX_READ_BYTES", 2 * pair.theirs[0].nbytes)
    receiver = await pair.receiver([0, 1, 2, 3, 4])
    receiver.expect(0, pair.checksums([5, 6, 7, 8, 9]))
    reading = asyncio.create_task(receiver.read(0, [5, 6, 7, 8, 9]))
    while receiver.num_blocks_received < 2:
        await asyncio.sleep(0)
    pair.network.kill("owner")
    with pytest.raises(PeerLost):
        await reading
    assert receiver.num_blocks_received == 2
    other = InMemoryTransport(PoolIdentity("other", "model"), pair.network)
    peer = await pair.reader.connect(other.register_pool(pair.theirs))
    again = BlockReceiver(pair.reader, peer, pair.ours, [0, 1, 2, 3, 4], 5.0, receiver.num_blocks_received)
    await again.read(2, [10, 11, 12])
    again.expect(2, pair.checksums([10, 11, 12]))
    assert again.num_blocks_received == 5
    assert first_elements(pair.ours, [0, 1, 2, 3, 4]) == [5, 6, 10, 11, 12]
