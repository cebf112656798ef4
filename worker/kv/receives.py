"""KV receives: tasks that fill requests' blocks from other workers, and end in the engine without fail."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from baton.engine.errors import EngineEnded
from baton.engine.kv.groups import held
from baton.engine.request import BlockId, Request
from baton.engine.scheduling.schedule import Received
from baton.worker.base import Host
from baton.worker.drain import Drain

logger = logging.getLogger(__name__)


class KVReceives:
    """The tasks that fill the blocks of receiving requests.

    A fill may be cancelled at any moment, even before its first step. The engine is notified only after it has ended
    and no transfer can write into the request's blocks any more. Unchecked bytes are zeroed: attention reads the
    unfilled part of a block with weight zero, and zero times NaN is NaN.
    """

    def __init__(self, host: Host, drain: Drain) -> None:
        self._host = host
        self._drain = drain  # completes only when the blocks of every fill are free
        self._endings: set[asyncio.Task[None]] = set()

    def start(
        self,
        request: Request,
        filling: Coroutine[Any, Any, None],
        outcome: Callable[["asyncio.Task[None]"], Received],
    ) -> "asyncio.Task[None]":
        """Return the task that runs `filling`; it may be cancelled. At its end `outcome` gives what it received."""
        task = asyncio.create_task(filling)
        num_known = request.num_computed_tokens // self._host.config.block_size
        to_fill = [table[num_known:] for table in request.block_tables]
        state = list(request.state_blocks)
        ending = asyncio.create_task(self._end(request, num_known, to_fill, state, task, outcome))
        self._drain.enter()
        self._endings.add(ending)
        ending.add_done_callback(self._ended)
        return task

    def refuse(self, request: Request) -> None:
        """End the receive of an aborted request with nothing received."""
        self._host.call(lambda engine: engine.end_receive(request.request_id, Received(0)))

    async def close(self) -> None:
        """Return once every fill has ended; the caller must have cancelled them."""
        while self._endings:
            await asyncio.wait(self._endings)

    def _ended(self, ending: "asyncio.Task[None]") -> None:
        self._endings.discard(ending)
        self._drain.leave()

    async def _end(
        self,
        request: Request,
        num_known: int,
        to_fill: Sequence[Sequence[BlockId]],
        state: Sequence[BlockId],
        task: "asyncio.Task[None]",
        outcome: Callable[["asyncio.Task[None]"], Received],
    ) -> None:
        await asyncio.wait([task])
        received = outcome(task)
        num_received = max(0, -(-received.num_tokens // self._host.config.block_size) - num_known)
        filled, wiped = ([block for table in to_fill for block in held(table[start:])] for start in (0, num_received))
        await self._host.ranks.clear([*filled, *state], wiped)  # attention does not read states
        try:
            await self._host.call(lambda engine: engine.end_receive(request.request_id, received))
        except EngineEnded:
            logger.info("the engine ended before the KV receive of %s", request.request_id)
