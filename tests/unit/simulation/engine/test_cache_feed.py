"""The cache feed of a simulated engine."""

import pytest

from baton.engine.kv.block_hash import BlockHash, hash_blocks
from baton.engine.kv.block_manager import BlockManager
from baton.engine.kv.prefix_cache import CacheChanges
from baton.simulation.engine import cache_feed
from baton.simulation.engine.cache_feed import CacheFeed
from baton.simulation.engine.engine import SimulatedEngine
from baton.simulation.engine.request import SimulatedRequest
from baton.simulation.engine.spec import WorkerSpec
from baton.simulation.engine.virtual_time import run_in_virtual_time

SPEC = WorkerSpec(block_size=4, num_blocks=9, max_num_seqs=2, max_num_batched_tokens=64)


async def compute(engine: SimulatedEngine, token_ids: list[int]) -> None:
    request = SimulatedRequest(request_id="r", token_ids=token_ids, num_output_tokens=1)
    assert len([token async for token in engine.generate(request)]) == 1


def test_the_feed_starts_with_a_snapshot_followed_by_changes() -> None:
    async def main() -> None:
        engine = SimulatedEngine(SPEC)
        first, second = list(range(16)), list(range(50, 74))
        await compute(engine, first)
        subscription = engine.cache_feed.subscribe()
        assert subscription.take() == CacheChanges(stored=hash_blocks(first, 4))
        assert subscription.take() == CacheChanges()
        await compute(engine, second)  # needs six of the eight blocks, and evicts the last two of the first prompt
        assert subscription.take() == CacheChanges(stored=hash_blocks(second, 4), removed=hash_blocks(first, 4)[:1:-1])
        subscription.close()
        await compute(engine, first)
        assert subscription.take() == CacheChanges()

    run_in_virtual_time(main())


def test_blocks_stored_and_evicted_between_two_reads_are_not_reported() -> None:
    async def main() -> None:
        engine = SimulatedEngine(SPEC)
        first, second = list(range(32)), list(range(50, 82))
        subscription = engine.cache_feed.subscribe()
        await compute(engine, first[:28])
        assert len(subscription.take().stored) == 7
        await compute(engine, second[:28])
        await compute(engine, first[:28])  # only the first block of the second prompt stays
        assert subscription.take() == CacheChanges(stored=hash_blocks(second, 4)[:1])

    run_in_virtual_time(main())


def test_contents_are_kept_on_request_only() -> None:
    async def main() -> None:
        engine = SimulatedEngine(SPEC)
        await compute(engine, [1, 2, 3, 4])
        with pytest.raises(KeyError):
            engine.cache_feed.content(hash_blocks([1, 2, 3, 4], 4)[0])

    run_in_virtual_time(main())


def test_a_reader_that_lags_loses_its_subscription(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_feed, "MAX_PENDING", 2)
    subscription = CacheFeed(BlockManager(9, 4, enable_prefix_caching=True)).subscribe()
    hashes = [BlockHash(bytes([index]) * 16) for index in range(3)]
    subscription.add(CacheChanges(stored=hashes[:2]))
    assert not subscription.is_lost
    subscription.add(CacheChanges(stored=hashes[2:]))
    assert subscription.is_lost
    assert subscription.take() == CacheChanges()
