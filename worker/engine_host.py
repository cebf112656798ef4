"""The worker's engine, seen from the event loop."""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.errors import EngineEnded, EngineError
from baton.engine.loop import EngineLoop
from baton.engine.outputs import EngineStats, ExpertFigures, StepOutput
from baton.kvtransfer.base import KVTransport, PoolDescription
from baton.kvtransfer.block_slice import PartGroup
from baton.rpc.peers import Identified
from baton.worker.ranks.ranks import Rank, Ranks

logger = logging.getLogger(__name__)

RANKS_POLL_S = 0.25  # interval of checks whether the engine waits for ranks

T = TypeVar("T")


class EngineHost:
    """The engine and its thread. Step outputs arrive on the event loop; calls are made from it."""

    def __init__(
        self,
        engine: Engine,
        transport: KVTransport,
        max_step_s: float = math.inf,
        followers: Sequence[Rank] = (),
    ) -> None:
        """Create the host on the running event loop, which must outlive it.

        max_step_s: an engine whose step takes longer is stuck; followers: ranks with the other shards of the KV.
        """
        self.config: EngineConfig = engine.config
        self.fingerprint, self.origin = engine.fingerprint, engine.origin
        self.finish_rule = engine.finish_rule
        self.vocab_size = engine.model_config.vocab_size
        self.vocabulary = engine.vocabulary
        self.pooling = engine.pooling  # None: the model makes no embeddings
        self.ranks = Ranks(transport, engine.pool, PartGroup(engine.kv_parts, 1 + len(followers)), followers=followers)
        self.block_bytes = self.ranks.block_bytes  # on all ranks
        self.kv_groups = engine.groups
        self.adapters = engine.adapters  # only its thread-safe calls are made here
        self.pool: PoolDescription = self.ranks.pool
        self.identity: Identified = self.pool  # of the worker; it changes with the role, and the pool's does not
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.max_step_s = max_step_s
        self._loop = asyncio.get_running_loop()
        self._stats: EngineStats = engine.stats()  # latest known
        self._figures: ExpertFigures | None = None
        self._listeners: list[Callable[[StepOutput], None]] = []
        self._engine = engine
        self._engine_loop = EngineLoop(engine, self._post_step, self._post_failure)

    @property
    def turn_s(self) -> float:
        """Seconds since the current iteration of the engine's loop began; 0 while it is idle."""
        return self._engine_loop.turn_s

    @property
    def is_short_of_ranks(self) -> bool:
        """Whether the engine computes nothing until more ranks join its group."""
        return self._engine.is_short_of_ranks

    @property
    def is_stuck(self) -> bool:
        """Whether the current step takes longer than `max_step_s`."""
        return self.turn_s > self.max_step_s

    def listen(self, listener: Callable[[StepOutput], None]) -> None:
        """Call `listener` with every step's output, on the event loop."""
        self._listeners.append(listener)

    def forget_listeners(self) -> None:
        """Call no listener any more that has been registered so far."""
        self._listeners = []

    def start(self) -> None:
        """Start the engine's thread."""
        self._engine_loop.start()

    async def stop(self) -> None:
        """Stop the engine's thread after the current step."""
        await asyncio.to_thread(self._engine_loop.stop)
        if self.failed.done():
            self.failed.exception()  # retrieve it: a failure during shutdown is not worth a log line

    def call(self, function: Callable[[Engine], T]) -> "asyncio.Future[T]":
        """Run `function(engine)` between two steps; the future need not be awaited."""
        future = asyncio.wrap_future(self._engine_loop.call(function), loop=self._loop)
        future.add_done_callback(_note_failure)
        return future

    async def stats(self) -> EngineStats:
        """Return current load and counters since the start; the latest known ones while the engine waits for ranks."""
        self._stats = await self._ask(Engine.stats, self._stats)
        return self._stats

    async def expert_figures(self) -> ExpertFigures | None:
        """Return load figures of the group's experts (see `stats`); None without a group."""
        self._figures = await self._ask(Engine.expert_figures, self._figures)
        return self._figures

    async def wait_unless_short(self, future: "asyncio.Future[T]") -> bool:
        """Wait for a call and return True; return False while the engine waits for ranks, when it runs no calls."""
        while not future.done():
            if self.is_short_of_ranks:
                return False
            await asyncio.wait((future,), timeout=RANKS_POLL_S)
        return True

    async def wait_stalled(self, limit_s: float) -> None:
        """Return once the engine waits for other ranks and has run no call for `limit_s` seconds."""
        while True:
            call = self.call(Engine.wake)
            await asyncio.wait((call,), timeout=limit_s)
            if not call.done() and self._engine.waits_for_ranks:
                return
            call.cancel()  # no-op once it is done
            await asyncio.sleep(limit_s)

    async def _ask(self, function: Callable[[Engine], T], last: T) -> T:
        if self.is_short_of_ranks:
            return last
        future = self.call(function)
        try:
            return future.result() if await self.wait_unless_short(future) else last
        finally:
            future.cancel()  # no-op once it is done

    def _post_step(self, output: StepOutput) -> None:
        self._loop.call_soon_threadsafe(self._dispatch, output)

    def _post_failure(self, error: BaseException) -> None:
        self._loop.call_soon_threadsafe(self._fail, error)

    def _dispatch(self, output: StepOutput) -> None:
        for listener in self._listeners:
            listener(output)

    def _fail(self, error: BaseException) -> None:
        if not self.failed.done():
            kind = EngineEnded if isinstance(error, EngineError) else RuntimeError
            self.failed.set_exception(kind(f"the engine failed: {error}"))


def _note_failure(future: "asyncio.Future[T]") -> None:
    """Log the failure of a call, which may have no caller that awaits it."""
    error = None if future.cancelled() else future.exception()
    if error is not None and not isinstance(error, EngineError):
        logger.error("a call into the engine failed", exc_info=error)
