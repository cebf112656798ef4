"""The Rank service of a follower: KV receives, checksums and clearing of blocks for the first rank."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import grpc
from google.protobuf.message import Message

from baton.engine.errors import EngineError
from baton.protos import rank_pb2, rank_pb2_grpc, worker_pb2
from baton.rpc.peers import Context
from baton.rpc.pool_description import pool_to_proto
from baton.worker.ranks.rank_receive import RankReceive
from baton.worker.ranks.ranks import Ranks

logger = logging.getLogger(__name__)

MAX_UNSENT = 1 << 16  # results that the first rank has not read; far more than its requests in progress need
FIELDS = {
    worker_pb2.KVPool: "pool",
    rank_pb2.ReceiveProgress: "progress",
    rank_pb2.RankFailure: "failure",
    worker_pb2.BlockChecksums: "checksums",
    rank_pb2.BlocksCleared: "cleared",
}


class RankService(rank_pb2_grpc.RankServicer):
    """The first rank's commands in progress. There is one stream, which lives as long as the worker."""

    def __init__(self, load: Callable[[str], Awaitable[Ranks]]) -> None:
        """`load` joins the group at the first rank's store, and returns when this rank has loaded its shard."""
        self._load = load
        self._results: asyncio.Queue[rank_pb2.RankNews] = asyncio.Queue(MAX_UNSENT)
        self._receives: dict[int, RankReceive] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_followed = False  # the first rank's stream is open
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # done when the stream ends

    async def Follow(  # noqa: N802
        self, request_iterator: AsyncIterator[rank_pb2.RankCommand], context: Context
    ) -> AsyncIterator[rank_pb2.RankNews]:
        """Receive the first rank's commands and stream the results."""
        self.is_followed = True
        await context.send_initial_metadata(())  # connected: the first rank may send its store's address
        following = asyncio.create_task(self._follow(request_iterator))
        following.add_done_callback(lambda _: self._put(rank_pb2.RankNews()))  # wakes the loop below
        try:
            while True:
                result = await self._results.get()
                if following.done():
                    following.result()
                    return
                yield result
        except Exception as error:
            kind = "" if isinstance(error, EngineError) else f"{type(error).__name__}: "
            logger.error("rank failed: %s%s", kind, error, exc_info=bool(kind))
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"{kind}{error}")
        finally:
            self.is_followed = False
            following.cancel()
            self._end()

    async def close(self) -> None:
        """Cancel all commands in progress, and wait for their end."""
        for receive in self._receives.values():
            receive.task.cancel()
        for task in self._tasks:
            task.cancel()
        if ending := {*self._tasks, *(each.task for each in self._receives.values())}:
            await asyncio.wait(ending)

    async def _follow(self, commands: AsyncIterator[rank_pb2.RankCommand]) -> None:
        first = await anext(commands)
        rank = await self._load(first.join.store)
        self._send(0, pool_to_proto(rank.pool))
        async for command in commands:
            self._execute(rank, command)

    def _execute(self, rank: Ranks, command: rank_pb2.RankCommand) -> None:
        number = command.number
        match command.WhichOneof("command"):
            case "receive":
                receive = RankReceive(rank, command.receive, lambda message: self._send(number, message))
                self._receives[number] = receive
                receive.task.add_done_callback(lambda _: self._receives.pop(number, None))
            case "blocks" | "checksums" as kind:
                if (known := self._receives.get(number)) is not None:
                    known.take(command.blocks if kind == "blocks" else command.checksums)
            case "make_checksums":
                self._start(number, self._make_checksums(rank, number, command.make_checksums))
            case "clear":
                self._start(number, self._clear(rank, number, command.clear))
            case kind:
                logger.error("unknown command from the first rank: %s", kind)

    async def _make_checksums(self, rank: Ranks, number: int, command: rank_pb2.MakeChecksums) -> None:
        checksums = await rank.checksums(command.block_ids, command.units_per_block)
        self._send(number, worker_pb2.BlockChecksums(checksums=checksums))

    async def _clear(self, rank: Ranks, number: int, command: rank_pb2.ClearBlocks) -> None:
        cleared = frozenset(command.block_ids)
        ending = [each.task for each in self._receives.values() if not each.blocks.isdisjoint(cleared)]
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending)
        await rank.clear(command.block_ids, command.wiped_ids)
        self._send(number, rank_pb2.BlocksCleared())

    def _start(self, number: int, executing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(self._answer(number, executing))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, number: int, executing: Coroutine[Any, Any, None]) -> None:
        try:
            await executing
        except Exception as error:
            logger.exception("a command of the first rank failed")
            self._send(number, rank_pb2.RankFailure(kind=type(error).__name__, message=str(error)))

    def _send(self, number: int, message: Message) -> None:
        field = FIELDS[type(message)]
        self._put(rank_pb2.RankNews(number=number, **{field: message}))  # type: ignore[arg-type]

    def _put(self, result: rank_pb2.RankNews) -> None:
        try:
            self._results.put_nowait(result)
        except asyncio.QueueFull:
            logger.error("the first rank has not read the last %d results: this rank ends", MAX_UNSENT)
            self._end()  # the end of the process ends the stream, so no result is lost unnoticed

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
