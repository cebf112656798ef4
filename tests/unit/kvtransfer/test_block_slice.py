"""Slices of blocks, tested by brute force over groups of 1 to 8 ranks."""

import pytest

from baton.kvtransfer.base import PoolDescription
from baton.kvtransfer.block_slice import WHOLE_BLOCK, BlockSlice, PartGroup, slices_of
from baton.kvtransfer.local_pool import Units

NUM_BLOCKS = 5


def is_divisible(num_parts: int, num_ranks: int) -> bool:
    return num_parts % num_ranks == 0 or num_ranks % num_parts == 0


GROUPS = [
    (parts, sources, readers)
    for parts in range(1, 9)
    for sources in range(1, 9)
    for readers in range(1, 9)
    if is_divisible(parts, sources) and is_divisible(parts, readers)
]


def held_parts(num_parts: int, num_ranks: int, rank: int) -> list[int]:
    """Compute the held parts from the definition, independently of the code."""
    if num_ranks > num_parts:
        return [rank * num_parts // num_ranks]
    return list(range(rank * num_parts // num_ranks, (rank + 1) * num_parts // num_ranks))


def pool_of(num_parts: int, num_ranks: int, rank: int) -> list[tuple[int, int]]:
    """Return the contents of a rank's pool as (block, part), in memory order."""
    return [(block, part) for block in range(NUM_BLOCKS) for part in held_parts(num_parts, num_ranks, rank)]


@pytest.mark.parametrize(("parts", "sources", "readers"), GROUPS)
def test_every_reader_gets_each_of_its_parts_once(parts: int, sources: int, readers: int) -> None:
    remote_blocks, local_blocks = [3, 0, 4], [1, 4, 0]
    for reader in range(readers):
        pool: list[tuple[int, int] | None] = [None] * len(pool_of(parts, readers, reader))
        slices = slices_of(PartGroup(parts, sources), PartGroup(parts, readers), reader)
        assert len({each.source for each in slices}) == len(slices)
        for each in slices:
            held = pool_of(parts, sources, each.source)
            # Units follow from the two block sizes; here a part is one byte.
            peer = PoolDescription("peer", "model", NUM_BLOCKS, len(held) // NUM_BLOCKS, {})
            units = Units.of(NUM_BLOCKS, len(pool) // NUM_BLOCKS, peer)
            assert (units.remote_per_block, units.local_per_block) == (each.remote_per_block, each.local_per_block)
            pairs = each.pairs(remote_blocks, local_blocks)
            units.check("peer", pairs.remote, pairs.local)
            for theirs, ours in zip(pairs.remote, pairs.local, strict=True):
                for part in range(units.unit_bytes):
                    assert pool[ours * units.unit_bytes + part] is None
                    pool[ours * units.unit_bytes + part] = held[theirs * units.unit_bytes + part]
        expected = dict.fromkeys(range(len(pool)))
        per_block = len(pool) // NUM_BLOCKS
        for remote, local in zip(remote_blocks, local_blocks, strict=True):
            for place, part in enumerate(held_parts(parts, readers, reader)):
                expected[local * per_block + place] = (remote, part)
        assert pool == list(expected.values())


@pytest.mark.parametrize(("parts", "sources", "readers"), GROUPS)
def test_readers_spread_over_replicas(parts: int, sources: int, readers: int) -> None:
    groups = PartGroup(parts, sources), PartGroup(parts, readers)
    load = [0] * sources
    for reader in range(readers):
        for each in slices_of(*groups, reader):
            load[each.source] += 1
    for parts_held in {tuple(held_parts(parts, sources, rank)) for rank in range(sources)}:
        loads = [load[rank] for rank in range(sources) if tuple(held_parts(parts, sources, rank)) == parts_held]
        assert max(loads) - min(loads) <= 1


def test_an_indivisible_block_is_read_whole_from_one_rank() -> None:
    for reader in range(6):
        (only,) = slices_of(PartGroup(1, 4), PartGroup(1, 6), reader)
        assert only == BlockSlice(reader % 4, 1, 0, 1, 0, 1)
    assert slices_of(PartGroup(8, 2), PartGroup(8, 2), 0) == [WHOLE_BLOCK]


def test_pairs_of_whole_blocks_are_the_blocks() -> None:
    remote, local = [7, 3], [0, 9]
    pairs = WHOLE_BLOCK.pairs(remote, local)
    assert (pairs.remote, pairs.local) == (remote, local)


def test_groups_that_do_not_divide_are_refused() -> None:
    for parts, ranks in ((8, 3), (3, 8), (0, 1), (4, 0)):
        with pytest.raises(ValueError, match="cannot be divided"):
            PartGroup(parts, ranks)
    with pytest.raises(ValueError, match="blocks of 4 parts"):
        slices_of(PartGroup(4, 2), PartGroup(8, 2), 0)
