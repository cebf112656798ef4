"""The engine of a worker, as its event loop sees it."""

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
from baton.worker.ranks.ranks import InProcessRank, Rank, Ranks

logger = logging.getLogger(__name__)

SHORT_LOOK_S = 0.25  # between two looks whether the engine waits for ranks

T = TypeVar("T")


class EngineHost:
    """Owns the engine's thread; step outputs arrive on the event loop, calls leave from it."""

    def __init__(
        self,
        engine: Engine,
        transport: KVTransport,
        max_step_s: float = math.inf,
        followers: Sequence[Rank] = (),
    ) -> None:
        """To be made on the event loop, which must run for as long as the host.

        `max_step_s`: an engine that takes longer for a step is stuck; `followers`: ranks that have parts of its KV.
        """
        own = InProcessRank(transport, engine.pool, PartGroup(engine.kv_parts, 1 + len(followers)))
        self.config: EngineConfig = engine.config
        self.fingerprint = engine.fingerprint
        self.finish_rule = engine.finish_rule
        self.vocab_size = engine.model_config.vocab_size
        self.ranks = Ranks(own, followers, engine.kv_parts)
        self.block_bytes = self.ranks.block_bytes  # on all ranks
        self.pool: PoolDescription = own.pool
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.max_step_s = max_step_s
        self._loop = asyncio.get_running_loop()
        self._stats: EngineStats = engine.stats()  # as last known
        self._figures: ExpertFigures | None = None
        self._listeners: list[Callable[[StepOutput], None]] = []
        self._engine = engine
        self._engine_loop = EngineLoop(engine, self._post_step, self._post_failure)

    @property
    def turn_s(self) -> float:
        """Seconds that the engine's present turn has taken so far; 0 while it has nothing to do."""
        return self._engine_loop.turn_s

    @property
    def is_short_of_ranks(self) -> bool:
        """Whether the engine computes nothing until more ranks come to its group."""
        return self._engine.is_short_of_ranks

    @property
    def is_stuck(self) -> bool:
        """Whether the engine does not come to an end with its step."""
        return self.turn_s > self.max_step_s

    def listen(self, listener: Callable[[StepOutput], None]) -> None:
        """`listener` hears every step's output, on the event loop."""
        self._listeners.append(listener)

    def start(self) -> None:
        """Begins to step."""
        self._engine_loop.start()

    async def stop(self) -> None:
        """Ends after the step in progress."""
        await asyncio.to_thread(self._engine_loop.stop)
        if self.failed.done():
            self.failed.exception()  # what fails while we end need not be known to anybody

    def call(self, function: Callable[[Engine], T]) -> "asyncio.Future[T]":
        """Runs `function(engine)` between two steps; need not be awaited."""
        future = asyncio.wrap_future(self._engine_loop.call(function), loop=self._loop)
        future.add_done_callback(_note_failure)
        return future

    async def stats(self) -> EngineStats:
        """Load now, and counters since the start; as last known while the engine waits for ranks."""
        self._stats = await self._ask(Engine.stats, self._stats)
        return self._stats

    async def expert_figures(self) -> ExpertFigures | None:
        """How its group's experts fare, as last known while the engine waits for ranks; None without a group."""
        self._figures = await self._ask(Engine.expert_figures, self._figures)
        return self._figures

    async def wait_unless_short(self, future: "asyncio.Future[T]") -> bool:
        """Wait for a call's end; return False instead of waiting while the engine waits for ranks, and runs no call."""
        while not future.done():
            if self.is_short_of_ranks:
                return False
            await asyncio.wait((future,), timeout=SHORT_LOOK_S)
        return True

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
    """A call that nobody awaits must not fail unseen."""
    error = None if future.cancelled() else future.exception()
    if error is not None and not isinstance(error, EngineError):
        logger.error("a call into the engine failed", exc_info=error)
