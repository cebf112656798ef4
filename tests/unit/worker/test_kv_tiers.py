"""Stores below a worker's pool: what is fetched equals what would be computed, and a bad store costs little."""

import asyncio
import itertools
import re
import threading
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch

from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.kv.block_hash import hash_blocks
from baton.engine.outputs import StepOutput
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from baton.engine.scheduling.schedule import Received
from baton.kvtransfer.base import PoolIdentity
from baton.kvtransfer.factory import create_transport
from baton.kvtransfer.shared_memory.pool import SharedPool
from baton.kvtransfer.store.pool_blocks import PoolBlocks
from baton.kvtransfer.store.store import Key, StoreUnavailable, StoreUse
from baton.rpc.status import NotFound
from baton.worker.drain import Drain
from baton.worker.engine_host import EngineHost
from baton.worker.kv.block_saver import PAUSE_S
from baton.worker.kv.receives import KVReceives
from baton.worker.kv.tier import Tier
from baton.worker.kv.tier_price import FetchSpeed
from baton.worker.kv.tiers import KVTiers, StoredFetch
from tests.checkpoints import make_checkpoint

BLOCK_SIZE = 16
PROMPT = list(range(5, 5 + 10 * BLOCK_SIZE + 3))
NUM_TOKENS = 12


class DictStore:
    """A store in this process's memory; reads of single blocks, or all calls, may fail, be missing, or hang."""

    def __init__(self, name: str = "host") -> None:
        self.name = name
        self.blocks: dict[Key, bytes] = {}
        self.reads: list[Key] = []
        self.is_closed = False
        self.writes_hang: threading.Event | None = None
        self.is_writing = threading.Event()
        self.num_writes = 0
        self.num_lookups = 0
        self.hangs_at: dict[Key, threading.Event] = {}
        self.fails_at: set[Key] = set()
        self.lookups_hang: threading.Event | None = None
        self.lookup_error: Exception | None = None

    def count(self, keys: Sequence[Key]) -> int:
        self.num_lookups += 1
        if self.lookup_error is not None:
            raise self.lookup_error
        if self.lookups_hang is not None:
            self.lookups_hang.wait()
        return len(list(itertools.takewhile(self.blocks.__contains__, keys)))

    def read(self, key: Key, into: memoryview) -> bool:
        self.reads.append(key)
        if key in self.hangs_at:
            self.hangs_at[key].wait()
        if key in self.fails_at:
            raise StoreUnavailable("the disk has caught fire")
        block = self.blocks.get(key)
        if block is not None:
            into[:] = block
        return block is not None

    def write(self, key: Key, block: memoryview) -> int:
        self.num_writes += 1
        self.is_writing.set()
        if self.writes_hang is not None:
            self.writes_hang.wait()
        if key in self.blocks:
            return 0
        self.blocks[key] = bytes(block)
        return len(block)

    def clear(self) -> int:
        num_blocks = len(self.blocks)
        self.blocks.clear()
        return num_blocks

    def use(self) -> StoreUse:
        return StoreUse(len(self.blocks), 0, 0)

    def close(self) -> None:
        self.is_closed = True


class Rig:
    """An engine with tiers, and the requests that it runs."""

    def __init__(self, model: Path, *stores: DictStore) -> None:
        self._memory = SharedPool()
        self.engine = Engine(
            EngineConfig(model=str(model), kv_cache_memory_bytes=1 << 20, num_threads=1), self._memory.allocate
        )
        identity = PoolIdentity(uuid.uuid4().hex, self.engine.fingerprint)
        self._transport = create_transport("shared_memory", identity, self._memory, "127.0.0.1")
        self.host = EngineHost(self.engine, self._transport)
        self.tiers = [Tier(store) for store in stores]
        self.stores = KVTiers(self.host, PoolBlocks(self.engine.pool), self.tiers)
        self.fills = KVReceives(self.host, Drain())
        self.received: list[int] = []
        self._fetches: dict[RequestId, tuple[Request, StoredFetch]] = {}
        self._tokens: dict[RequestId, list[int]] = {}
        self._ended: dict[RequestId, asyncio.Event] = {}
        self.host.listen(self._on_step)
        self.host.start()
        self.stores.start()

    async def generate(self, prompt: list[int], salt: str = "") -> list[int]:
        request = Request(
            RequestId(f"{len(self._tokens)}"),
            list(prompt),
            len(prompt),
            SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True),
            cache_salt=salt,
        )
        self._tokens[request.request_id] = []
        ended = self._ended[request.request_id] = asyncio.Event()
        fetch = await self.stores.find(request)
        if fetch is not None:
            self._fetches[request.request_id] = request, fetch
            await fetch.add()
        else:
            await self.host.call(lambda engine: engine.add(request))
        async with asyncio.timeout(60):
            await ended.wait()
        return self._tokens[request.request_id]

    def _on_step(self, step: StepOutput) -> None:
        for receiving in step.receiving:
            request, fetch = self._fetches[receiving.request_id]
            self.fills.start(request, fetch.run(), partial(self._outcome, fetch))
        for output in step.outputs:
            self._tokens[output.request_id] += output.token_ids
            if output.finish_reason is not None:
                self._ended[output.request_id].set()

    def _outcome(self, fetch: StoredFetch, task: "asyncio.Task[None]") -> Received:
        received = fetch.outcome(task)
        self.received.append(sum(fetch.tokens_by_tier.values()))
        return received

    async def saved(self, store: DictStore, num_blocks: int) -> None:
        """Wait until a store has some number of blocks."""
        async with asyncio.timeout(30):
            while len(store.blocks) < num_blocks:
                await asyncio.sleep(0.01)

    async def close(self) -> None:
        await self.fills.close()
        await self.stores.close()
        await self.host.call(lambda engine: engine.scheduler.check_integrity())
        usage = await self.host.call(lambda engine: engine.blocks.num_free - engine.blocks.num_usable)
        assert usage == 0
        await self.host.stop()
        await self._transport.close()
        self._memory.close()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a thread may start late, and a model this small computes as fast as it is fetched."""
    monkeypatch.setattr("baton.worker.kv.tiers.LOOKUP_S", 10.0)
    monkeypatch.setattr("baton.worker.kv.tier_price.GRACE_S", 10.0)
    monkeypatch.setattr(FetchSpeed, "pays", lambda *_: True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("qwen3", tmp_path_factory.mktemp("tiers") / "model")


@pytest.fixture(scope="module")
def hashes() -> list[bytes]:
    return list(hash_blocks(PROMPT, BLOCK_SIZE))


@pytest_asyncio.fixture
async def filled(model: Path) -> AsyncIterator[tuple[DictStore, list[int]]]:
    """A store with the blocks of a prompt, and the tokens after the prompt."""
    store, rig = DictStore(), Rig(model)
    rig.tiers.append(Tier(store))
    tokens = await rig.generate(PROMPT)
    await rig.saved(store, 10)
    await rig.close()
    yield store, tokens


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


async def test_a_prompt_that_is_used_again_is_not_copied_again(model: Path) -> None:
    store, rig = DictStore(), Rig(model)
    rig.tiers.append(Tier(store))
    await rig.generate(PROMPT)
    await rig.saved(store, 10)
    for _ in range(2):
        await rig.generate(PROMPT)
    await rig.close()
    assert store.num_writes == len(store.blocks)


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


def fail(*_: object) -> Any:
    raise RuntimeError("nothing is left")


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
