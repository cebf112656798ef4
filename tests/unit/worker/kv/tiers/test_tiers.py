"""Stores below a worker's pool: what is fetched equals what would be computed."""

import asyncio
import threading
from itertools import takewhile
from pathlib import Path

import pytest

from baton.engine.engine import Engine
from baton.engine.kv.block_hash import hash_blocks
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from baton.rpc.status import NotFound
from baton.worker.kv.stored_fetch import StoredFetch
from baton.worker.kv.tier import Tier
from tests.unit.worker.kv.tiers.tier_rig import BLOCK_SIZE, PROMPT, DictStore, Rig, fail


async def test_a_prompt_is_fetched_and_its_tokens_are_the_same(
    model: Path, filled: tuple[DictStore, list[int]], hashes: list[bytes]
) -> None:
    store, tokens = filled
    rig = Rig(model, store)
    assert await rig.generate(PROMPT) == tokens
    assert (rig.received, store.reads) == ([160], hashes)
    assert rig.tiers[0].counters.fetched_blocks == 10
    assert rig.tiers[0].speed.noted_at_s > 0
    assert await rig.generate(PROMPT, salt="tenant") == tokens  # in another tenant's name nothing is found
    assert (rig.received, store.reads) == ([160], hashes)
    await rig.close()


async def test_the_output_is_saved_when_the_worker_ends(model: Path) -> None:
    store, rig = DictStore(), Rig(model)
    rig.tiers.append(Tier(store))
    tokens = await rig.generate(PROMPT)
    await rig.close()
    assert set(hash_blocks([*PROMPT, *tokens[:-1]], BLOCK_SIZE)) == store.blocks.keys()


async def test_tiers_complete_each_other(model: Path, filled: tuple[DictStore, list[int]], hashes: list[bytes]) -> None:
    store, tokens = filled
    host, disk = DictStore("host"), DictStore("disk")
    for index, key in enumerate(hashes):
        (disk if 3 <= index < 7 else host).blocks[key] = store.blocks[key]
    rig = Rig(model, host, disk)
    assert await rig.generate(PROMPT) == tokens
    assert rig.received == [160]
    assert [len(host.reads), disk.reads] == [6, hashes[3:7]]
    await rig.saved(disk, 10)
    await rig.close()


async def test_blocks_in_the_pool_are_not_fetched(
    model: Path, filled: tuple[DictStore, list[int]], hashes: list[bytes]
) -> None:
    """Nor are the load figures of all requests computed for it, whose cost grows with the queue."""
    store, _ = filled
    rig = Rig(model, store)
    rig.engine.stats = fail  # type: ignore[method-assign]
    await rig.generate(PROMPT[: 4 * BLOCK_SIZE + 1])
    await rig.generate(PROMPT)
    assert store.reads == hashes
    assert rig.received == [64, 96]
    await rig.generate(PROMPT)
    assert rig.received == [64, 96]
    await rig.close()


async def test_a_pool_that_has_more_than_the_stores_by_then_needs_no_fetch(
    model: Path, filled: tuple[DictStore, list[int]], hashes: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another request has computed the whole prompt since the lookup, while this one waited."""

    def enter(fetch: StoredFetch, engine: Engine) -> None:
        fetch._request.receives_kv = True
        engine.add(fetch._request)

    store, tokens = filled
    rig = Rig(model, store)
    assert await rig.generate(PROMPT) == tokens
    monkeypatch.setattr(StoredFetch, "_enter", enter)
    found = hashes[:6]
    monkeypatch.setattr(store, "count", lambda keys: len(list(takewhile(found.__contains__, keys))))
    assert await rig.generate(PROMPT) == tokens
    assert rig.received == [160, 0]
    await rig.close()


async def test_a_prompt_that_is_used_again_is_not_copied_again(model: Path) -> None:
    store, rig = DictStore(), Rig(model)
    rig.tiers.append(Tier(store))
    await rig.generate(PROMPT)
    await rig.saved(store, 10)
    for _ in range(2):
        await rig.generate(PROMPT)
    await rig.close()
    assert store.num_writes == len(store.blocks)


async def test_a_fetched_prompt_is_not_copied_again(model: Path, filled: tuple[DictStore, list[int]]) -> None:
    store, tokens = filled
    num_writes, num_blocks = store.num_writes, len(store.blocks)
    rig = Rig(model, store)
    assert await rig.generate(PROMPT) == tokens
    assert rig.received == [160]
    await rig.close()
    assert store.num_writes - num_writes == len(store.blocks) - num_blocks


async def test_a_second_store_gets_fetched_blocks_once(model: Path, filled: tuple[DictStore, list[int]]) -> None:
    """It may lack what the first one has; afterwards it was offered them recently."""
    store, tokens = filled
    disk = DictStore("disk")
    rig = Rig(model, store, disk)
    for _ in range(2):
        assert await rig.generate(PROMPT) == tokens
        await rig.saved(disk, 10)
        async with asyncio.timeout(30):
            while await rig.host.call(lambda engine: len(rig.stores._saver._used)):
                await asyncio.sleep(0.01)
        await rig.host.call(lambda engine: engine.blocks.cache.clear())
    assert rig.received == [160, 160]
    num_first = len(disk.blocks)
    await rig.close()
    assert disk.num_writes == len(disk.blocks) == num_first


async def test_no_thread_for_a_lookup(
    model: Path, filled: tuple[DictStore, list[int]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(model, filled[0])
    request = Request(RequestId("x"), list(PROMPT), len(PROMPT), SamplingParams())
    with monkeypatch.context() as patch:
        patch.setattr("baton.worker.kv.tiers.run_in_thread", fail)
        assert await rig.stores.find(request) is None
    assert "stored KV is not looked up: nothing is left" in caplog.text
    await rig.close()


async def test_a_prompt_that_the_engine_would_refuse_is_not_hashed(model: Path) -> None:
    rig = Rig(model, DictStore())
    num_tokens = rig.host.finish_rule.max_model_len
    request = Request(RequestId("x"), [5] * num_tokens, num_tokens, SamplingParams())
    assert await rig.stores.find(request) is None
    assert request.block_hashes == []
    await rig.close()


async def test_fetches_at_once_are_bounded(
    model: Path, filled: tuple[DictStore, list[int]], hashes: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt whose fetch gets no turn in time is computed; a fetch that is given up ends its turn."""
    monkeypatch.setattr("baton.worker.kv.tiers.MAX_FETCHES", 1)
    monkeypatch.setattr("baton.worker.kv.tier_price.UNKNOWN_S", 0.2)
    store, tokens = filled
    hang = store.hangs_at[hashes[0]] = threading.Event()
    rig = Rig(model, store)
    await rig.stores._slots.acquire()
    assert await rig.generate(PROMPT) == tokens
    assert (rig.received, store.reads, rig.tiers[0].counters.slow_fetches) == ([0], [], 1)
    rig.stores._slots.release()
    await rig.close()
    rig = Rig(model, store)
    assert await rig.generate(PROMPT) == tokens
    assert (rig.received, store.reads, rig.tiers[0].counters.slow_fetches) == ([0], [hashes[0]], 1)
    hang.set()
    async with asyncio.timeout(10):
        while rig.tiers[0].late:
            await asyncio.sleep(0.01)
    assert not rig.stores._slots.locked()
    await rig.close()


async def test_the_blocks_of_a_prompt_are_saved_at_once(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next prompt may evict them. A store that is late is not asked again and again."""
    monkeypatch.setattr("baton.worker.kv.block_saver.PAUSE_S", 1000.0)
    monkeypatch.setattr("baton.worker.kv.block_saver.MANY", 5)
    store = DictStore()
    rig = Rig(model, store)
    await asyncio.sleep(0)
    await rig.generate(PROMPT)
    await rig.saved(store, 10)
    await rig.close()


async def test_a_cleared_store_has_nothing_to_fetch(model: Path, filled: tuple[DictStore, list[int]]) -> None:
    store, tokens = filled
    rig = Rig(model, store)
    assert await rig.generate(PROMPT) == tokens
    assert rig.received == [160]
    assert rig.stores.hashes.snapshot()
    with pytest.raises(NotFound, match="there is no tier 'disk'; the worker has kv_cache, host"):
        await rig.stores.clear("disk")
    assert await rig.stores.clear("host") == 10
    assert not rig.stores.hashes.snapshot()
    await rig.host.call(lambda engine: engine.blocks.cache.clear())
    assert await rig.generate(PROMPT) == tokens
    assert rig.received == [160]
    await rig.close()
