import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from baton.kvtransfer.base import PoolIdentity
from baton.kvtransfer.block_slice import PartGroup, slices_of
from baton.kvtransfer.checksum.block_checksum import WORDS, UnitChecksums, block_checksums
from baton.kvtransfer.checksum.word_checksum import word_checksums
from baton.kvtransfer.errors import ChecksumMismatch, PeerLost, PeerRefused
from baton.kvtransfer.in_memory import InMemoryNetwork, InMemoryTransport
from baton.kvtransfer.receiver import BlockReceiver


class Pair:
    """A pool that is read, and the pool that it is read into."""

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


async def test_blocks_that_were_received_before_are_not_read_again() -> None:
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
async def test_blocks_before_a_corrupt_one_count(reads_first: bool) -> None:
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


async def test_blocks_from_a_lost_peer_are_kept_and_another_peer_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair()
    monkeypatch.setattr("baton.kvtransfer.receiver.MAX_READ_BYTES", 2 * pair.theirs[0].nbytes)
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


class Ranks:
    """Two groups of ranks: those of one hold their parts of the same blocks, those of the other read them."""

    def __init__(self, sources: PartGroup, readers: PartGroup) -> None:
        self._sources, self._readers = sources, readers
        self._network = InMemoryNetwork()
        parts = torch.arange(6 * sources.num_parts * 8).view(6, sources.num_parts, 8)  # [num_blocks, num_parts, words]
        self.parts = parts
        self.theirs = [self._share(parts, sources, rank) for rank in range(sources.num_ranks)]
        self._descriptions = [
            InMemoryTransport(PoolIdentity(f"owner-{rank}", "model"), self._network).register_pool(pool)
            for rank, pool in enumerate(self.theirs)
        ]

    def _share(self, parts: Tensor, group: PartGroup, rank: int) -> Tensor:
        first = group.first_part(rank)
        return parts[:, first : first + group.parts_per_rank].contiguous()

    async def read(
        self, rank: int, remote: list[int], local: list[int], last: list[int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the rank's blocks after all reads, and the expected ones; `last`: checksums of the last block."""
        reader = InMemoryTransport(PoolIdentity(f"reader-{rank}", "model"), self._network)
        ours = torch.full((6, self._readers.parts_per_rank, 8), -1)
        reader.register_pool(ours)
        for block_slice in slices_of(self._sources, self._readers, rank):
            peer = await reader.connect(self._descriptions[block_slice.source])
            alone = replace(block_slice, source=0)  # the checksums of this rank are announced without the others'
            receiver = BlockReceiver(reader, peer, ours, local, 5.0, block_slice=alone)
            units = block_slice.remote_per_block
            checksums = block_checksums(self.theirs[block_slice.source], remote, units)
            checksums[len(checksums) - len(last or ()) :] = last or ()
            await receiver.read(0, remote[:1])
            receiver.expect(0, checksums[: 2 * units])
            assert receiver.num_blocks_received == 1
            await receiver.read(1, remote[1:])
            assert receiver.num_blocks_received == 2
            receiver.expect(1, checksums[units:])
            assert receiver.num_blocks_received == receiver.num_blocks_read == len(remote)
        expected = torch.full_like(ours, -1)
        expected[local] = self._share(self.parts, self._readers, rank)[remote]
        return ours, expected


@pytest.mark.parametrize(("num_parts", "num_sources", "num_readers"), [(8, 2, 4), (8, 4, 1), (6, 2, 3), (2, 4, 8)])
async def test_a_rank_assembles_blocks_from_several_ranks(num_parts: int, num_sources: int, num_readers: int) -> None:
    ranks = Ranks(PartGroup(num_parts, num_sources), PartGroup(num_parts, num_readers))
    for rank in range(num_readers):
        ours, expected = await ranks.read(rank, [4, 0, 3], [1, 5, 2])
        assert torch.equal(ours, expected)


async def test_a_corrupt_unit_and_incomplete_checksums_are_detected() -> None:
    network = InMemoryNetwork()
    theirs, ours = torch.arange(4 * 16).view(4, 16), torch.full((4, 4), -1)
    owner = InMemoryTransport(PoolIdentity("owner", "model"), network)
    reader = InMemoryTransport(PoolIdentity("reader", "model"), network)
    description = owner.register_pool(theirs)
    reader.register_pool(ours)
    (block_slice,) = slices_of(PartGroup(4, 1), PartGroup(4, 4), 2)
    receiver = BlockReceiver(reader, await reader.connect(description), ours, [3, 1], 5.0, block_slice=block_slice)
    with pytest.raises(PeerRefused, match="received 7 checksums of blocks of 4 units each"):
        receiver.expect(0, list(range(7)))
    receiver.expect(0, block_checksums(theirs, [0, 2], 4))
    theirs[0, :8] = theirs[2, 12:] = -5  # outside of our slice
    await receiver.read(0, [0])
    theirs[2, 11] = -5
    with pytest.raises(ChecksumMismatch, match="block 1 of the request, in block 1"):
        await receiver.read(1, [2])
    assert receiver.num_blocks_received == 1
    assert ours[3].tolist() == [8, 9, 10, 11]


@pytest.mark.parametrize("part", [0, 1])
async def test_every_unit_of_a_slice_is_compared(part: int) -> None:
    ranks = Ranks(PartGroup(6, 2), PartGroup(6, 3))  # a source has three parts of a block, the reader two of these
    announced = block_checksums(ranks.theirs[0], [3], 3)
    ranks.theirs[0][3, part] += 1
    with pytest.raises(ChecksumMismatch, match="block 1 of the request"):
        await ranks.read(0, [4, 3], [1, 5], announced)
    ranks.theirs[0][3, part] -= 1
    await ranks.read(0, [4, 3], [1, 5], announced)


async def test_the_peer_names_its_kind_of_checksums() -> None:
    pair = Pair()
    peer = await pair.reader.connect(pair.description)
    made = UnitChecksums(pair.theirs, 512, WORDS)
    receiver = BlockReceiver(pair.reader, peer, pair.ours, [7, 3, 9], 5.0, checksum_kind=WORDS)
    await receiver.read(0, [15, 2])
    receiver.expect(0, made.of([15, 2]))
    assert receiver.num_blocks_received == 2
    await receiver.read(2, [4])
    with pytest.raises(ChecksumMismatch, match="block 2 of the request"):
        receiver.expect(2, pair.checksums([4]))  # xxh3, not words
    with pytest.raises(PeerRefused, match="kind 'crc32'"):
        BlockReceiver(pair.reader, peer, pair.ours, [7], 5.0, checksum_kind="crc32")


async def test_on_a_gpu_checksums_are_computed_after_the_read() -> None:
    pair = Pair()
    peer = await pair.reader.connect(pair.description)
    receiver = BlockReceiver(pair.reader, peer, pair.ours, [7, 3, 9], 5.0, checksum_kind=WORDS)
    made: list[tuple[bool, list[int]]] = []

    def of(units: Sequence[int]) -> list[int]:
        made.append((threading.current_thread() is threading.main_thread(), list(units)))
        return word_checksums(pair.ours.view(torch.uint8), units)

    receiver._checksums = SimpleNamespace(is_on_gpu=True, of=of)  # type: ignore[assignment]
    await receiver.read(0, [15, 2, 4])
    receiver.expect(0, UnitChecksums(pair.theirs, 512, WORDS).of([15, 2, 4]))
    assert receiver.num_blocks_received == 3
    assert made == [(False, [7, 3, 9])]  # in one call, not on the event loop's thread
