"""Stores that fail, hang or are late: the prompt is computed, and a bad store costs little."""

import asyncio
import re
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from baton.engine.engine import Engine
from baton.engine.errors import EngineEnded
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from baton.kvtransfer.errors import PeerLost
from baton.kvtransfer.store.pool_blocks import PoolBlocks
from baton.kvtransfer.store.store import Key, StoreUnavailable
from baton.rpc.status import Unavailable
from baton.worker.kv.block_saver import PAUSE_S
from baton.worker.kv.storing_rank import RankFetch, RankSave
from baton.worker.kv.tier import Tier
from tests.unit.worker.kv.tiers.tier_rig import BLOCK_SIZE, PROMPT, DictStore, Rig, fail


@pytest.mark.parametrize("fault", ["missing", "fails"])
async def test_what_does_not_come_is_computed(
    model: Path, filled: tuple[DictStore, list[int]], hashes: list[bytes], fault: str
) -> None:
    store, tokens = filled
    found = store.count(hashes)
    if fault == "fails":
        store.fails_at.add(hashes[4])
    else:
        original, store.count = store.count, lambda keys: found  # type: ignore[method-assign]
        del store.blocks[hashes[4]]
    rig = Rig(model, store)
    assert await rig.generate(PROMPT) == tokens
    assert rig.received == [4 * BLOCK_SIZE]
    assert rig.tiers[0].counters.failures == (fault == "fails")
    if fault == "missing":
        store.count = original  # type: ignore[method-assign]
    await rig.close()


async def test_a_read_that_hangs_costs_little_and_never_writes_later(
    model: Path, filled: tuple[DictStore, list[int]], hashes: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("baton.worker.kv.tier_price.GRACE_S", 1.0)
    store, tokens = filled
    hang = store.hangs_at[hashes[4]] = threading.Event()
    rig = Rig(model, store)
    await rig.generate([7] * 400)  # the engine learns what a prompt token costs
    started_s = time.monotonic()
    assert await rig.generate(PROMPT) == tokens
    assert rig.received == [4 * BLOCK_SIZE]
    assert time.monotonic() - started_s < 5
    assert rig.tiers[0].counters.slow_fetches == 1
    assert rig.tiers[0].late
    pool = rig.engine.pool.clone()
    assert await rig.stores.find(Request(RequestId("x"), list(PROMPT), len(PROMPT), SamplingParams())) is None
    hang.set()
    async with asyncio.timeout(10):
        while rig.tiers[0].late:
            await asyncio.sleep(0.01)
    assert torch.equal(rig.engine.pool, pool)
    assert len(store.reads) == 5
    await rig.close()


async def test_a_lookup_that_hangs_is_given_up(
    model: Path, filled: tuple[DictStore, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("baton.worker.kv.tiers.LOOKUP_S", 0.05)
    store, tokens = filled
    other = DictStore("disk")
    other.blocks = dict(store.blocks)
    store.lookups_hang = threading.Event()
    rig = Rig(model, store, other)
    assert await rig.generate(PROMPT) == tokens
    assert rig.received == []
    assert rig.tiers[0].late
    assert other.num_lookups == 0
    monkeypatch.setattr("baton.worker.kv.tiers.LOOKUP_S", 10.0)
    assert await rig.stores.find(Request(RequestId("x"), list(PROMPT), len(PROMPT), SamplingParams())) is not None
    assert other.num_lookups == 1
    store.lookups_hang.set()
    async with asyncio.timeout(10):
        while rig.tiers[0].late:
            await asyncio.sleep(0.01)
    assert other.num_lookups == 1
    await rig.close()


@pytest.mark.parametrize(("rate", "is_waited_for"), [(1.0, True), (1e9, False)], ids=["saves much", "saves little"])
async def test_a_slow_lookup_is_waited_for_if_it_may_save_enough(
    model: Path,
    filled: tuple[DictStore, list[int]],
    rate: float,
    is_waited_for: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As those of windows and states in S3, which take several round trips."""
    monkeypatch.setattr("baton.worker.kv.tiers.LOOKUP_S", 0.01)
    monkeypatch.setattr("baton.worker.kv.tier_price.LONGEST_LOOKUP_S", 30.0)
    monkeypatch.setattr(Engine, "prefill_tokens_per_s", property(lambda _: rate))
    store, tokens = filled
    rig = Rig(model, store)
    store.lookups_hang = threading.Event()
    generating = asyncio.create_task(rig.generate(PROMPT))
    async with asyncio.timeout(10):
        while not (store.num_lookups if is_waited_for else rig.tiers[0].late):
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)  # more than LOOKUP_S
    store.lookups_hang.set()
    assert await generating == tokens
    assert rig.received == ([160] if is_waited_for else [])
    async with asyncio.timeout(10):
        while rig.tiers[0].late:
            await asyncio.sleep(0.01)
    store.lookups_hang.clear()
    again = asyncio.create_task(rig.generate(PROMPT))  # from the pool: nothing to save
    async with asyncio.timeout(10):
        while not rig.tiers[0].late:
            await asyncio.sleep(0.01)
    assert await again == tokens
    store.lookups_hang.set()
    await rig.close()


@pytest.mark.parametrize("failure", [None, EngineEnded("the engine has ended")], ids=["hangs", "has ended"])
async def test_a_lookup_is_given_up_if_the_engine_prices_nothing(
    failure: EngineEnded | None, model: Path, filled: tuple[DictStore, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("baton.worker.kv.tiers.LOOKUP_S", 0.01)
    monkeypatch.setattr("baton.worker.kv.tiers.LONGEST_LOOKUP_S", 0.1)
    store, _ = filled
    rig = Rig(model, store)
    store.lookups_hang = threading.Event()
    pricing: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    if failure is not None:
        pricing.set_exception(failure)
    with monkeypatch.context() as patch:
        patch.setattr(rig.host, "call", lambda _: pricing)
        request = Request(RequestId("r"), list(PROMPT), len(PROMPT), SamplingParams())
        async with asyncio.timeout(10):
            assert await rig.stores.find(request) is None
    store.lookups_hang.set()
    await rig.close()


async def test_a_read_that_hangs_before_anything_is_known(
    model: Path, filled: tuple[DictStore, list[int]], hashes: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("baton.worker.kv.tier_price.UNKNOWN_S", 0.2)
    store, tokens = filled
    store.hangs_at[hashes[0]] = threading.Event()
    rig = Rig(model, store)
    assert await rig.generate(PROMPT) == tokens
    assert rig.received == [0]
    store.hangs_at[hashes[0]].set()
    await rig.close()


@pytest.mark.parametrize("is_short", [True, False])
async def test_a_store_that_is_late_at_the_end_is_closed_once_it_may_be(
    model: Path, is_short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store in host memory that is not closed stays there."""
    monkeypatch.setattr("baton.worker.kv.block_saver.FLUSH_S", 0.01)
    monkeypatch.setattr("baton.worker.kv.tiers.LATE_S", 10.0 if is_short else 0.01)
    store, rig = DictStore(), Rig(model)
    store.writes_hang = threading.Event()
    rig.tiers.append(Tier(store))
    await rig.generate(PROMPT)
    assert await asyncio.to_thread(store.is_writing.wait, 30)
    closing = asyncio.ensure_future(rig.stores.close())
    async with asyncio.timeout(10):
        while not rig.tiers[0].late:
            await asyncio.sleep(0.01)
    if is_short:
        store.writes_hang.set()
    await closing
    assert store.is_closed is is_short
    store.writes_hang.set()
    await rig.close()


async def test_blocks_wait_for_a_store_that_is_late(model: Path) -> None:
    """They were copied and thrown away otherwise."""
    store, rig = DictStore(), Rig(model)
    rig.tiers.append(Tier(store))
    late = asyncio.get_running_loop().create_future()
    rig.tiers[0].give_up(late)
    await rig.generate(PROMPT)
    await asyncio.sleep(2 * PAUSE_S)
    late.set_result(None)
    await rig.saved(store, 10)
    await rig.close()


@pytest.mark.parametrize("place", ["copy", "write"])
async def test_saving_goes_on_after_an_unexpected_failure(
    model: Path, place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("baton.worker.kv.block_saver.FAILURE_PAUSE_S", 0.01)
    store, rig = DictStore(), Rig(model)
    rig.tiers.append(Tier(store))
    with monkeypatch.context() as patch:
        patch.setattr(*((PoolBlocks, "buffer") if place == "copy" else (store, "write")), fail)
        await rig.generate(PROMPT)
        async with asyncio.timeout(10):
            while not re.search("could not be saved.*: nothing is left", caplog.text):
                await asyncio.sleep(0.01)
    await rig.generate(PROMPT[1:])
    await rig.saved(store, 10)
    await rig.close()


async def test_a_lookup_that_fails_is_counted_and_the_prompt_computed(
    model: Path, filled: tuple[DictStore, list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    store, tokens = filled
    rig = Rig(model, store)
    store.lookup_error = StoreUnavailable("no route to host")
    assert await rig.generate(PROMPT) == tokens
    assert rig.tiers[0].counters.failures == 1
    store.lookup_error = KeyError("a bug")
    assert await rig.generate(PROMPT, salt="other") == tokens
    assert "a lookup of stored KV failed" in caplog.text
    await rig.close()


class LostRank:
    """A follower that is lost while the first rank reads."""

    def __init__(self, store: DictStore) -> None:
        self._store = store

    def fetch_stored(self, tiers: Sequence[int], keys: Sequence[Key], blocks: Sequence[int]) -> RankFetch:
        end_s = time.monotonic() + 0.3
        while len(self._store.reads) < len(keys) and time.monotonic() < end_s:
            time.sleep(0.01)
        raise PeerLost("gone")

    async def clear_stored(self, tier: int) -> int:
        raise PeerLost("gone")

    def save_stored(self, blocks: Sequence[int]) -> RankSave:
        raise PeerLost("gone")


async def test_no_block_is_used_that_a_lost_rank_lacks(model: Path, filled: tuple[DictStore, list[int]]) -> None:
    store, tokens = filled
    store.reads.clear()
    rig = Rig(model, store)
    rig.stores._followers = [LostRank(store)]
    assert await rig.generate(PROMPT) == tokens
    assert rig.received == [0]
    with pytest.raises(Unavailable, match="the host tier was not cleared: gone"):
        await rig.stores.clear("host")
    await rig.close()
