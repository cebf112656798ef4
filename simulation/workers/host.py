"""A simulated engine as the services of a worker use it."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from baton.engine.kv.origin import KVOrigin
from baton.engine.outputs import EngineStats, StepOutput
from baton.protos import worker_pb2
from baton.simulation.engine.core import MAX_TOKEN_IDS, EngineCore
from baton.simulation.workers.kv_pool import SimulatedPool
from baton.worker.base import EngineCalls

T = TypeVar("T")


class SimulatedHost:
    """An engine core on the event loop, which has no thread: calls run at once; see `baton.worker.base.Host`."""

    is_short_of_ranks = False
    is_stuck = False

    def __init__(self, core: EngineCore, pool: worker_pb2.KVPool) -> None:
        self.config = core.config
        self.fingerprint = pool.fingerprint
        self.origin = KVOrigin("simulated", pool.fingerprint)
        self.finish_rule = core.finish_rule
        self.vocab_size = MAX_TOKEN_IDS
        self.vocabulary = ""
        self.block_bytes = core.spec.block_bytes
        self.kv_groups = core.blocks.groups
        self.ranks = SimulatedPool(pool, core.link)
        self.pool = pool
        self.identity = pool
        self._core = core

    def listen(self, listener: Callable[[StepOutput], None]) -> None:
        """Call `listener` with every step's output."""
        self._core.listen(listener)

    def call(self, function: Callable[[EngineCalls], T]) -> "asyncio.Future[T]":
        """Run `function(engine)`; the future is done, and its callbacks run soon."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        free = self._core.blocks.cache.pool
        num_free = free.num_free
        try:
            future.set_result(function(self._core))
        except Exception as error:  # raised in the caller instead
            future.set_exception(error)
        if free.num_free > num_free:
            self._core.wake()  # a request may wait for blocks that the end of a lease has freed
        return future

    async def stats(self) -> EngineStats:
        """Return current load and counters since the start."""
        return self._core.load()

    async def wait_unless_short(self, future: "asyncio.Future[T]") -> bool:
        """Return True when the callbacks of a call have run."""
        await asyncio.sleep(0)
        return True
