"""Subscriptions to cache changes, merged while a router does not read."""

import random

import pytest

from baton.engine.kv.block_hash import HASH_BYTES, BlockHash, hash_blocks
from baton.engine.kv.prefix_cache import CacheChanges
from baton.worker.cache_feed import MAX_PENDING, Subscription
from baton.worker.kv.stored_hashes import StoredHashes


def split(packed: bytes) -> set[BlockHash]:
    return {BlockHash(packed[i : i + HASH_BYTES]) for i in range(0, len(packed), HASH_BYTES)}


def test_messages_rebuild_the_cache_for_any_times_of_reads() -> None:
    rng = random.Random(1)
    universe = hash_blocks(list(range(400)), 4)
    cached = set(rng.sample(universe, 30))
    subscription = Subscription(stored=dict.fromkeys(cached))
    mirror: set[BlockHash] = set()
    sequences = []
    for _ in range(300):
        removed = rng.sample(sorted(cached), min(len(cached), rng.randint(0, 5)))
        cached.difference_update(removed)
        stored = [each for each in rng.sample(universe, rng.randint(0, 5)) if each not in cached]
        cached.update(stored)
        subscription.add(CacheChanges(stored, removed))
        if rng.random() < 0.4 and (events := subscription.take()) is not None:
            sequences.append(events.sequence)
            mirror.difference_update(split(events.removed))
            mirror.update(split(events.stored))
            assert mirror == cached
    assert sequences == list(range(len(sequences)))
    assert len(sequences) > 50


def test_an_empty_snapshot_is_sent_and_an_empty_change_is_not() -> None:
    subscription = Subscription()
    first = subscription.take()
    assert first is not None
    assert first.sequence == 0
    assert subscription.take() is None


def test_a_router_that_never_reads_loses_its_subscription() -> None:
    subscription = Subscription(stored=dict.fromkeys(BlockHash(i.to_bytes(16, "big")) for i in range(MAX_PENDING)))
    assert not subscription.is_lost
    subscription.add(CacheChanges([BlockHash(b"x" * 16)], []))
    assert subscription.is_lost


def test_a_lost_subscription_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton.worker.cache_feed.MAX_PENDING", 10)
    subscription = Subscription()
    for number in range(100):
        subscription.add(CacheChanges([BlockHash(number.to_bytes(16, "big"))], []))
        assert len(subscription.stored) <= 10
    assert subscription.is_lost
    assert subscription.take() is None  # an empty snapshot would be a wrong one


def test_events_beyond_one_message_go_into_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton.worker.cache_feed.MAX_MESSAGE_HASHES", 7)
    rng = random.Random(1)
    universe = hash_blocks(list(range(400)), 4)
    cached = set(rng.sample(universe, 50))
    subscription = Subscription(stored=dict.fromkeys(cached), num_snapshot=len(cached))
    mirror: set[BlockHash] = set()
    sequences, sizes = [], []
    for _ in range(300):
        removed = rng.sample(sorted(cached), min(len(cached), rng.randint(0, 9)))
        cached.difference_update(removed)
        stored = [each for each in rng.sample(universe, rng.randint(0, 9)) if each not in cached]
        cached.update(stored)
        subscription.add(CacheChanges(stored, removed))
        for _ in range(rng.randint(0, 4)):
            if (events := subscription.take()) is not None:
                sequences.append(events.sequence)
                sizes.append((len(events.removed) + len(events.stored)) // HASH_BYTES)
                mirror.difference_update(split(events.removed))
                mirror.update(split(events.stored))
        assert subscription.is_pending or mirror == cached
    while (events := subscription.take()) is not None:
        mirror.difference_update(split(events.removed))
        mirror.update(split(events.stored))
    assert mirror == cached
    assert sequences == list(range(len(sequences)))
    assert sizes[:3] == [7, 7, 7]
    assert max(sizes) == 7


def test_a_large_snapshot_does_not_count_as_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton.worker.cache_feed.MAX_PENDING", 10)
    snapshot = [BlockHash(number.to_bytes(16, "big")) for number in range(100)]
    subscription = Subscription(stored=dict.fromkeys(snapshot), num_snapshot=100)
    subscription.add(CacheChanges([BlockHash(b"x" * 16)], []))
    assert not subscription.is_lost


def test_messages_rebuild_what_the_stores_have_for_any_times_of_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton.worker.cache_feed.MAX_MESSAGE_HASHES", 7)
    rng = random.Random(2)
    universe = hash_blocks(list(range(400)), 4)
    known = StoredHashes(max_known=40)
    known.add(universe[:10])
    known.take_changes()
    subscription = Subscription(saved=dict.fromkeys(known.snapshot()))
    mirror: set[BlockHash] = set()
    for _ in range(300):
        known.discard(rng.sample(universe, rng.randint(0, 9)))
        known.add(rng.sample(universe, rng.randint(0, 9)))
        subscription.add(CacheChanges(), known.take_changes())
        while rng.random() < 0.6 and (events := subscription.take()) is not None:
            mirror.difference_update(split(events.lost))
            mirror.update(split(events.saved))
            if not events.more:
                assert mirror == set(known.snapshot())
    assert len(known.snapshot()) <= 40
