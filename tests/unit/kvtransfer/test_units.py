"""Reads between pools with different block sizes, over every transport."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from math import gcd

import pytest
from torch import Tensor

from baton.kvtransfer.base import PoolDescription
from baton.kvtransfer.errors import PeerLost, PeerRefused, TransferDeadline
from baton.kvtransfer.local_pool import MAX_BLOCK_UNITS, MAX_PEER_UNITS, Units, unit_bytes_of
from tests.marks import each_value, slow_case, slow_except
from tests.unit.kvtransfer.kv_peers import holds_unit
from tests.unit.kvtransfer.read_rig import PATIENCE_S, UNTOUCHED, Gate, cluster_of, every_backend, soon

PART_WORDS = 1024  # 8 KiB
LARGE_PART_WORDS = 3 << 17  # 3 MiB: 14 of them exceed the socket buffers of two processes
OUR_PARTS = 12  # in each of our blocks
# Parts per block of the peers: equal, 1/2, 1/4, 1/3, 2, 4, 3 and 2/3 times ours.
THEIR_PARTS = (12, 6, 3, 4, 24, 48, 36, 8)
USUAL_PARTS = (3, 24, 8)
NUM_BLOCKS = 10


def note_landed(pool: Tensor, pairs: Iterator[tuple[int, int]], words: int, landed: list[bool], num_units: int) -> None:
    """Record whether the next `num_units` units have the expected contents."""
    landed += [holds_unit(pool, ours, 1, theirs, words) for ours, theirs in islice(pairs, num_units)]


@each_value
@every_backend
@pytest.mark.parametrize("parts", slow_except(THEIR_PARTS, USUAL_PARTS))
async def test_random_units_arrive_and_nothing_else_changes(
    backend: str, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(parts)
    async with cluster_of(backend, monkeypatch, (NUM_BLOCKS, OUR_PARTS * PART_WORDS)) as cluster:
        source = await cluster.start_peer(shape=(NUM_BLOCKS + 1, parts * PART_WORDS))
        peer = await cluster.transport.connect(source.description)
        unit_parts = gcd(OUR_PARTS, parts)
        words = unit_parts * PART_WORDS
        num_remote, num_local = (NUM_BLOCKS + 1) * parts // unit_parts, NUM_BLOCKS * OUR_PARTS // unit_parts
        most = min(num_remote, num_local)
        # Scattered units, runs across block boundaries on both sides, the last unit, and an empty list.
        lists = [(rng.sample(range(num_remote), count), rng.sample(range(num_local), count)) for count in (1, 7, most)]
        lists += [(list(range(1, most)), list(range(most - 1))), ([num_remote - 1], [num_local - 1]), ([], [])]
        for remote, local in lists:
            cluster.pool.fill_(UNTOUCHED)
            landed: list[bool] = []
            pairs = iter(list(zip(local, remote, strict=True)))
            note = partial(note_landed, cluster.pool, pairs, words, landed)
            await cluster.transport.read(peer, remote, local, PATIENCE_S, note)
            assert landed == [True] * len(remote)
            for theirs, ours in zip(remote, local, strict=True):
                assert holds_unit(cluster.pool, ours, 1, theirs, words)
            others = [unit for unit in range(num_local) if unit not in local]
            assert bool((cluster.pool.view(-1, words)[others] == UNTOUCHED).all())
        assert len(cluster.transport.quarantine) == 0


@every_backend
async def test_peers_of_several_sizes_at_once(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster_of(backend, monkeypatch, (NUM_BLOCKS, OUR_PARTS * PART_WORDS)) as cluster:
        reads = []
        for index, parts in enumerate((6, 12, 48)):
            source = await cluster.start_peer(shape=(NUM_BLOCKS, parts * PART_WORDS), seed=parts)
            peer = await cluster.transport.connect(source.description)
            per_block = OUR_PARTS // gcd(OUR_PARTS, parts)  # units in our blocks
            units = range(3 * index * per_block, 3 * (index + 1) * per_block)
            reads.append(cluster.transport.read(peer, list(reversed(units)), units, PATIENCE_S))
        await asyncio.gather(*reads)
        for index, parts in enumerate((6, 12, 48)):
            words = gcd(OUR_PARTS, parts) * PART_WORDS
            per_block = OUR_PARTS * PART_WORDS // words
            units = range(3 * index * per_block, 3 * (index + 1) * per_block)
            for theirs, ours in zip(reversed(units), units, strict=True):
                assert holds_unit(cluster.pool, ours, parts, theirs, words)
        assert bool((cluster.pool[9] == UNTOUCHED).all())


@every_backend
@pytest.mark.parametrize("parts", [3, 48])
async def test_wrong_units_are_refused(backend: str, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster_of(backend, monkeypatch, (NUM_BLOCKS, OUR_PARTS * PART_WORDS)) as cluster:
        source = await cluster.start_peer(shape=(5, parts * PART_WORDS))
        peer = await cluster.transport.connect(source.description)
        unit_parts = gcd(OUR_PARTS, parts)
        num_remote, num_local = 5 * parts // unit_parts, NUM_BLOCKS * OUR_PARTS // unit_parts
        for remote in ([num_remote], [-1], [0, 1 << 40]):
            with pytest.raises(PeerRefused, match=r"not one of the 5 of peer"):
                await cluster.transport.read(peer, remote, list(range(len(remote))), PATIENCE_S)
        for local in ([num_local], [-1]):
            with pytest.raises(ValueError, match=f"not one of the pool's {NUM_BLOCKS}"):
                await cluster.transport.read(peer, [0], local, PATIENCE_S)
        with pytest.raises(ValueError, match="twice"):
            await cluster.transport.read(peer, [0, 1], [3, 3], PATIENCE_S)
        assert bool((cluster.pool == UNTOUCHED).all())
        assert len(cluster.transport.quarantine) == 0
        last = [num_remote - 1] * 2
        await cluster.transport.read(peer, last, [0, num_local - 1], PATIENCE_S)
        for unit in (0, num_local - 1):
            assert holds_unit(cluster.pool, unit, 1, num_remote - 1, unit_parts * PART_WORDS)


@each_value
@every_backend
@pytest.mark.parametrize(
    ("how", "parts"),  # our blocks are of two
    [
        *(("deadline", 4), ("cancelled", 1), ("killed", 4)),
        *(slow_case("deadline", 1), slow_case("cancelled", 4), slow_case("killed", 1)),
    ],
)
async def test_an_abandoned_read_keeps_the_blocks_of_its_units(
    backend: str, how: str, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster_of(backend, monkeypatch, (16, 2 * LARGE_PART_WORDS)) as cluster:
        source = await cluster.start_peer(shape=(16, parts * LARGE_PART_WORDS))
        peer = await cluster.transport.connect(source.description)
        per_block = 2 // gcd(2, parts)
        blocks = random.Random(5).sample(range(16), 14)
        local = [block * per_block for block in blocks]  # the first unit of each
        remote = [(unit * 5) % 16 for unit in local]
        gate = Gate(monkeypatch, cluster)
        deadline_s = 0.3 if how == "deadline" else PATIENCE_S
        read = asyncio.create_task(cluster.transport.read(peer, remote, local, deadline_s))
        await gate.hold(blocks[0], source)
        assert [block for block in range(16) if block in cluster.transport.quarantine] == sorted(blocks)
        if how == "cancelled":
            read.cancel()
        elif how == "killed":
            source.kill()
            gate.open()
        expected = {"deadline": TransferDeadline, "cancelled": asyncio.CancelledError, "killed": PeerLost}
        with pytest.raises(expected[how]):
            await read
        if how != "killed" and backend != "in_memory":
            assert all(block in cluster.transport.quarantine for block in blocks)
        gate.open()
        await soon(cluster.transport.quarantine.wait_clear(blocks))
        assert len(cluster.transport.quarantine) == 0
        cluster.pool[blocks] = UNTOUCHED
        free = [unit for unit in range(16 * per_block) if unit // per_block not in blocks]
        if how == "killed":
            source = await cluster.start_peer(shape=(16, parts * LARGE_PART_WORDS))
        await cluster.transport.read(await cluster.transport.connect(source.description), free, free, PATIENCE_S)
        words = 2 * LARGE_PART_WORDS // per_block
        assert all(holds_unit(cluster.pool, unit, 1, unit, words) for unit in free)
        assert bool((cluster.pool[blocks] == UNTOUCHED).all())


def test_a_unit_is_the_greatest_common_divisor_of_block_sizes() -> None:
    for ours, theirs, unit in ((64, 64, 64), (64, 32, 32), (16, 64, 16), (24, 16, 8), (256, 1, 1)):
        assert unit_bytes_of(ours, theirs) == unit_bytes_of(theirs, ours) == unit
    for wrong in (0, -64, 63, 64 * MAX_BLOCK_UNITS * 2 - 1, 10**400 + 1):
        with pytest.raises(ValueError, match="not made of the same parts") as raised:
            unit_bytes_of(64 * MAX_BLOCK_UNITS * 2, wrong)
        assert len(str(raised.value)) < 1000


def test_units_map_to_our_blocks() -> None:
    peer = PoolDescription("peer", "model", 7, 300, {})
    units = Units.of(4, 200, peer)
    assert units == Units(unit_bytes=100, local_per_block=2, remote_per_block=3, num_local=8, num_remote=21)
    assert list(units.local_blocks([7, 0, 6, 1, 2])) == [3, 0, 1]
    same = Units.of(4, 300, peer)
    assert list(same.local_blocks([2, 0])) == [2, 0]
    for num_blocks in (0, -1, MAX_PEER_UNITS // 3 + 1):
        with pytest.raises(PeerRefused, match="claims to have"):
            Units.of(4, 200, replace(peer, num_blocks=num_blocks))
