"""Fills requests' blocks from elsewhere in simulated time, and makes sure that every fill ends."""

import asyncio
import logging
from typing import Protocol

import grpc

from baton.engine.request import Request
from baton.engine.scheduling.schedule import Received
from baton.simulation.engine.core import EngineCore


def connection_error(error: grpc.aio.AioRpcError) -> ConnectionError:
    """In one line, without the call's history."""
    return ConnectionError(f"{error.code().name}: {error.details()}")


logger = logging.getLogger(__name__)


class Fill(Protocol):
    """Brings a request's KV."""

    @property
    def received(self) -> Received:
        """What is here."""
        ...

    async def run(self) -> None:
        """Returns when all that comes is here, ConnectionError if no more comes; may be cancelled at any moment."""
        ...


class Fills:
    """Owns the tasks that fill blocks of receiving requests; each ends in the engine, however it went."""

    def __init__(self, engine: EngineCore) -> None:
        self._engine = engine
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, request: Request, fill: Fill) -> "asyncio.Task[None]":
        """Runs a fill; the task may be cancelled."""
        task = asyncio.create_task(fill.run())
        self._tasks.add(task)

        def end(task: "asyncio.Task[None]") -> None:
            self._tasks.discard(task)
            error = None if task.cancelled() else task.exception()
            if error is not None:
                told = None if isinstance(error, ConnectionError) else error
                logger.warning("filling the blocks of %s failed: %s", request.request_id, error, exc_info=told)
            self._engine.end_receive(request, fill.received)

        task.add_done_callback(end)
        return task

    def refuse(self, request: Request) -> None:
        """Ends the fill of a request that nobody wants any more."""
        self._engine.end_receive(request, Received(0))

    async def close(self) -> None:
        """Cancels every fill; returns when they have ended."""
        for task in self._tasks:
            task.cancel()
        while self._tasks:
            await asyncio.wait(self._tasks)
