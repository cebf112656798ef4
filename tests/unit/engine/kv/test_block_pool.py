"""The block pool against a plain model of it, and the order of eviction."""

import random

import pytest

from baton.engine.kv.block_hash import BlockHash, hash_blocks
from baton.engine.kv.block_pool import BlockPool
from baton.engine.kv.prefix_cache import PrefixCache
from baton.engine.request import BlockId


def some_hashes(count: int, seed: int = 0) -> list[BlockHash]:
    return hash_blocks([seed] * count * 4, 4)


def test_random_holds_and_releases_keep_the_pool_consistent() -> None:
    rng = random.Random(2)
    pool = BlockPool(33)
    held: list[BlockId] = []
    for _ in range(5_000):
        if rng.random() < 0.5 and pool.num_free:
            held += pool.allocate(rng.randint(1, min(4, pool.num_free)))
        elif held and rng.random() < 0.3:
            block = rng.choice(held)
            pool.hold([block])
            held.append(block)
        elif held:
            block = held.pop(rng.randrange(len(held)))
            pool.release([block], [rng.random() < 0.5])
        pool.check_integrity(held)
    assert 0 not in held


def test_a_pool_without_usable_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="2 blocks"):
        BlockPool(1)


def test_eviction_takes_empty_blocks_first_then_the_least_recently_used_ends() -> None:
    cache = PrefixCache(BlockPool(9))
    old, new = some_hashes(3, seed=1), some_hashes(3, seed=2)
    for hashes in (old, new):
        blocks = cache.allocate(3)
        for block, block_hash in zip(blocks, hashes, strict=True):
            cache.store(block, block_hash)
        cache.release(blocks)
    assert (len(cache.match(old)), len(cache.match(new))) == (3, 3)
    cache.allocate(2)  # the two that never held anything
    assert (len(cache.match(old)), len(cache.match(new))) == (3, 3)
    cache.allocate(1)
    assert (len(cache.match(old)), len(cache.match(new))) == (2, 3)
    cache.allocate(2)
    assert (len(cache.match(old)), len(cache.match(new))) == (0, 3)


def test_changes_replicate_the_cache() -> None:
    rng = random.Random(3)
    cache = PrefixCache(BlockPool(17))
    mirror: set[BlockHash] = set()
    universe = some_hashes(60)
    for _ in range(500):
        for block in cache.allocate(rng.randint(1, 4)):
            cache.store(block, rng.choice(universe))
            cache.release([block])
        if rng.random() < 0.2:
            changes = cache.take_changes()
            assert mirror.issuperset(changes.removed)
            mirror.difference_update(changes.removed)
            assert mirror.isdisjoint(changes.stored)
            mirror.update(changes.stored)
            assert mirror == set(cache.snapshot())
        cache.check_integrity()


def test_a_disabled_cache_finds_nothing() -> None:
    cache = PrefixCache(BlockPool(5), enabled=False)
    (block,) = cache.allocate(1)
    cache.store(block, some_hashes(1)[0])
    assert cache.match(some_hashes(1)) == []
    assert cache.snapshot() == []
