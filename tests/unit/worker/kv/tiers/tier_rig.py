"""An engine with stores below its pool, stores that fail on demand."""

import asyncio
import itertools
import threading
import uuid
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.outputs import StepOutput
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from baton.engine.scheduling.schedule import Received
from baton.kvtransfer.base import PoolIdentity
from baton.kvtransfer.factory import create_transport
from baton.kvtransfer.shared_memory.pool import SharedPool
from baton.kvtransfer.store.store import Key, StoreUnavailable, StoreUse
from baton.worker.drain import Drain
from baton.worker.engine_host import EngineHost
from baton.worker.kv.rank_stores import RankStores
from baton.worker.kv.receives import KVReceives
from baton.worker.kv.stored_fetch import StoredFetch
from baton.worker.kv.tier import Tier
from baton.worker.kv.tiers import KVTiers

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
        self.is_damaged_at: set[Key] = set()
        self.lookups_hang: threading.Event | None = None
        self.clear_error: Exception | None = None
        self.lookup_error: Exception | None = None

    def count(self, keys: Sequence[Key]) -> int:
        self.num_lookups += 1
        if self.lookup_error is not None:
            raise self.lookup_error
        if self.lookups_hang is not None:
            self.lookups_hang.wait()
        return len(list(itertools.takewhile(self.blocks.__contains__, keys)))

    def has(self, keys: Sequence[Key]) -> list[bool]:
        self.num_lookups += 1
        return [key in self.blocks for key in keys]

    def read(self, key: Key, into: memoryview) -> bool:
        self.reads.append(key)
        if key in self.hangs_at:
            self.hangs_at[key].wait()
        if key in self.fails_at:
            raise StoreUnavailable("the disk has caught fire")
        if key in self.is_damaged_at:
            into[:] = b"\xff" * len(into)  # NaN, as floating-point numbers
            return False
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
        if self.clear_error is not None:
            raise self.clear_error
        num_blocks = len(self.blocks)
        self.blocks.clear()
        return num_blocks

    def use(self) -> StoreUse:
        return StoreUse(len(self.blocks), 0, 0)

    def close(self) -> None:
        self.is_closed = True


class Rig:
    """An engine with tiers, and the requests that it runs."""

    def __init__(self, model: Path, *stores: DictStore, **options: Any) -> None:
        """`options`: of the engine."""
        self._memory = SharedPool()
        self.engine = Engine(
            EngineConfig(**{"model": str(model), "kv_cache_memory_bytes": 1 << 20, "num_threads": 1} | options),
            self._memory.allocate,
        )
        identity = PoolIdentity(uuid.uuid4().hex, self.engine.fingerprint)
        self._transport = create_transport("shared_memory", identity, self._memory, "127.0.0.1")
        self.host = EngineHost(self.engine, self._transport)
        self.tiers = [Tier(store) for store in stores]
        self.stores = KVTiers(self.host, RankStores(self.engine.pool, self.tiers, self.host.ranks.parts))
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


def fail(*_: object) -> Any:
    raise RuntimeError("nothing is left")
