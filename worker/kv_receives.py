"""Fills requests' blocks from elsewhere, and makes sure that every fill ends."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from baton.engine.errors import EngineEnded
from baton.engine.request import Request
from baton.engine.scheduling.schedule import Received
from baton.worker.drain import Drain
from baton.worker.engine_host import EngineHost

logger = logging.getLogger(__name__)


class KVReceives:
    """Owns the tasks that fill blocks of receiving requests.

    A fill may be cancelled at any moment, even before its first step. It ends in the engine only when it is over and
    nothing can be written into the request's blocks any more. What came and was not checked is wiped: the rest of a
    block that is filled in part is read by attention with weight zero, and zero times a NaN is a NaN.
    """

    def __init__(self, host: EngineHost, drain: Drain) -> None:
        self._host = host
        self._drain = drain  # is over only when the blocks of every fill are free
        self._endings: set[asyncio.Task[None]] = set()

    def start(
        self,
        request: Request,
        filling: Coroutine[Any, Any, None],
        outcome: Callable[["asyncio.Task[None]"], Received],
    ) -> "asyncio.Task[None]":
        """Runs `filling`; when it has ended, however, `outcome` says what came. The task returned may be cancelled."""
        task = asyncio.create_task(filling)
        num_known = request.num_computed_tokens // self._host.config.block_size
        to_fill: list[int] = list(request.block_table[num_known:])
        ending = asyncio.create_task(self._end(request, num_known, to_fill, task, outcome))
        self._drain.enter()
        self._endings.add(ending)
        ending.add_done_callback(self._ended)
        return task

    def refuse(self, request: Request) -> None:
        """Ends the fill of a request that nobody wants any more."""
        self._host.call(lambda engine: engine.end_receive(request.request_id, Received(0)))

    async def close(self) -> None:
        """Returns once every fill has ended; the caller has cancelled them."""
        while self._endings:
            await asyncio.wait(self._endings)

    def _ended(self, ending: "asyncio.Task[None]") -> None:
        self._endings.discard(ending)
        self._drain.leave()

    async def _end(
        self,
        request: Request,
        num_known: int,
        to_fill: list[int],
        task: "asyncio.Task[None]",
        outcome: Callable[["asyncio.Task[None]"], Received],
    ) -> None:
        await asyncio.wait([task])
        received = outcome(task)
        num_received = -(-received.num_tokens // self._host.config.block_size)
        await self._host.ranks.clear(to_fill, to_fill[max(0, num_received - num_known) :])
        try:
            await self._host.call(lambda engine: engine.end_receive(request.request_id, received))
        except EngineEnded:
            logger.info("the engine ended before the fill of %s did", request.request_id)
