"""The handover of one prompt's KV from a simulated prefill engine to another engine, without gRPC.

The chunks are announced as they are computed. The blocks of a chunk are read over the link while the next chunk is
being computed. The first output token is passed on at once.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass

from baton.engine.outputs import SampledToken
from baton.engine.request import Request
from baton.engine.scheduling.schedule import Received
from baton.simulation.engine.clock import sleep_until
from baton.simulation.engine.core import EngineCore
from baton.simulation.engine.link import Link
from baton.simulation.engine.request import OpenPrefill, PrefilledChunk

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Arrival:
    """A read that ends at `at_s` on the loop's clock, with the blocks up to `num_blocks`."""

    at_s: float
    num_blocks: int


class Handover:
    """The handover of one prompt; `received` is at any time what has been read."""

    def __init__(
        self,
        request: Request,
        block_size: int,
        link: Link,
        open_prefill: OpenPrefill,
        on_first_token: Callable[[PrefilledChunk], None],
    ) -> None:
        """Prepare a handover of what `request` has not computed; its block table is allocated."""
        self.num_blocks = -(-request.num_tokens // block_size)
        self._block_size = block_size
        self._link = link
        self._open_prefill = open_prefill
        self._on_first_token = on_first_token
        self._num_tokens = request.num_tokens
        self._num_known_blocks = request.num_computed_tokens // block_size
        self._arrivals: list[_Arrival] = []
        self._sampled: SampledToken | None = None

    @property
    def received(self) -> Received:
        """The tokens whose KV has been read, and the first output token."""
        now_s = asyncio.get_running_loop().time()
        ended = [each.num_blocks for each in self._arrivals if each.at_s <= now_s]
        num_blocks = max(ended, default=self._num_known_blocks)
        return Received(min(num_blocks * self._block_size, self._num_tokens), self._sampled)

    async def run(self) -> None:
        """Return when all blocks and the first token are received; raises ConnectionError.

        If it is cancelled or fails, unfinished reads are lost.
        """
        try:
            async with aclosing(self._open_prefill(self._num_known_blocks * self._block_size)) as chunks:
                async for chunk in chunks:
                    self._take(chunk)
                    if chunk.first_token is not None:
                        await sleep_until(self._arrivals[-1].at_s if self._arrivals else 0.0)
                        return
            raise ConnectionError("the prefill ended before its last chunk")
        finally:
            now_s = asyncio.get_running_loop().time()
            self._arrivals = [arrival for arrival in self._arrivals if arrival.at_s <= now_s]

    def _take(self, chunk: PrefilledChunk) -> None:
        is_last = chunk.first_token is not None
        num_ready = self.num_blocks if is_last else chunk.num_computed_tokens // self._block_size
        num_announced = self._arrivals[-1].num_blocks if self._arrivals else self._num_known_blocks
        if num_ready > num_announced:
            self._arrivals.append(_Arrival(self._link.reserve(num_ready - num_announced), num_ready))
        if chunk.first_token is not None:
            self._sampled = SampledToken(chunk.first_token)
            self._on_first_token(chunk)


class Handovers:
    """The tasks of an engine's handovers; the engine is notified of the end of each, however it ended."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, request: Request, handover: Handover) -> "asyncio.Task[None]":
        """Return the task that runs a handover; it may be cancelled."""
        task = asyncio.create_task(handover.run())
        self._tasks.add(task)

        def end(task: "asyncio.Task[None]") -> None:
            self._tasks.discard(task)
            error = None if task.cancelled() else task.exception()
            if error is not None:
                unexpected = None if isinstance(error, ConnectionError) else error
                logger.warning("the handover of %s failed: %s", request.request_id, error, exc_info=unexpected)
            self._core.end_receive(request.request_id, handover.received)

        task.add_done_callback(end)
        return task

    async def close(self) -> None:
        """Cancel every handover; return when all have ended."""
        for task in self._tasks:
            task.cancel()
        while self._tasks:
            await asyncio.wait(self._tasks)
