"""Writers of stores: each with its own queue, so that a slow store holds up no other."""

import asyncio
import threading
from collections.abc import Sequence

import numpy as np
import pytest

from baton.engine.kv.block_hash import BlockHash
from baton.worker.kv import tier_writer
from baton.worker.kv.rank_stores import Batch
from baton.worker.kv.tier import Tier
from baton.worker.kv.tier_writer import MAX_WAITING, TierWriters
from tests.unit.worker.kv.tiers.tier_rig import DictStore

WAIT_S = 20.0


def batch(number: int) -> Batch:
    key = BlockHash(bytes([number]) * 16)
    return Batch([key], [key], [np.full(8, number, dtype=np.uint8)])


async def written(store: DictStore, num_blocks: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while len(store.blocks) < num_blocks:
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("slow_place", [0, 1])
async def test_a_slow_store_holds_up_no_other(slow_place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It misses batches from the first without room on, until it has written those that it has."""
    monkeypatch.setattr(tier_writer, "PATIENCE_S", 0.01)
    fast, slow = DictStore("host"), DictStore("disk")
    slow.writes_hang = threading.Event()
    saved: list[BlockHash] = []

    def note(hashes: Sequence[BlockHash]) -> None:
        saved.extend(hashes)

    stores = [slow, fast] if slow_place == 0 else [fast, slow]
    writers = TierWriters([Tier(store) for store in stores], note)
    for number in range(2 * MAX_WAITING):
        await writers.put(batch(number))
        await written(fast, number + 1)
    assert writers.takes
    assert slow.num_writes == 1
    slow.writes_hang.set()
    async with asyncio.timeout(WAIT_S):
        await writers.flush(WAIT_S)
    assert slow.blocks.keys() == {bytes([number]) * 16 for number in range(MAX_WAITING + 1)}
    assert len(saved) == 3 * MAX_WAITING + 1
    await writers.put(batch(99))
    await written(slow, MAX_WAITING + 2)
    await written(fast, 2 * MAX_WAITING + 1)
    await writers.close()


async def test_a_write_that_takes_too_long_makes_the_store_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier_writer, "WRITE_S", 0.01)
    store = DictStore()
    store.writes_hang = threading.Event()
    tier = Tier(store)
    writers = TierWriters([tier])
    await writers.put(batch(1))
    async with asyncio.timeout(WAIT_S):
        while not tier.late:
            await asyncio.sleep(0.005)
    assert not writers.takes
    await writers.put(batch(2))  # missed
    store.writes_hang.set()
    await writers.flush(WAIT_S)
    assert not tier.late
    assert writers.takes
    await writers.put(batch(3))
    await written(store, 2)
    assert store.blocks.keys() == {bytes([number]) * 16 for number in (1, 3)}
    await writers.close()


async def test_closed_writers_drop_what_waits() -> None:
    store = DictStore()
    store.writes_hang = threading.Event()
    tier = Tier(store)
    writers = TierWriters([tier])
    for number in range(3):
        await writers.put(batch(number))
    assert await asyncio.to_thread(store.is_writing.wait, WAIT_S)
    await writers.close()
    assert len(tier.late) == 1
    store.writes_hang.set()
    await asyncio.wait(tier.late, timeout=WAIT_S)
    assert len(store.blocks) == 1
