"""What a rank that follows does for its first rank, beside the steps."""

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
from baton.worker.ranks.ranks import InProcessRank

logger = logging.getLogger(__name__)

FIELDS = {
    worker_pb2.KVPool: "pool",
    rank_pb2.ReceiveProgress: "progress",
    rank_pb2.RankFailure: "failure",
    worker_pb2.BlockChecksums: "checksums",
    rank_pb2.BlocksCleared: "cleared",
}


class RankService(rank_pb2_grpc.RankServicer):
    """Owns what the first rank asked and has not been answered; its stream comes once, and is over with the worker."""

    def __init__(self, load: Callable[[str], Awaitable[InProcessRank]]) -> None:
        """`load` joins the ranks at the first one's store, and returns when this one has its part."""
        self._load = load
        self._news: asyncio.Queue[rank_pb2.RankNews] = asyncio.Queue()  # holds answers to what was asked
        self._receives: dict[int, RankReceive] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_followed = False  # the first rank's stream is there
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # the first rank's stream

    async def Follow(  # noqa: N802
        self, request_iterator: AsyncIterator[rank_pb2.RankCommand], context: Context
    ) -> AsyncIterator[rank_pb2.RankNews]:
        """Commands in, news out."""
        self.is_followed = True
        await context.send_initial_metadata(())  # the first rank may say where its store is
        following = asyncio.create_task(self._follow(request_iterator))
        following.add_done_callback(lambda _: self._news.put_nowait(rank_pb2.RankNews()))
        try:
            while True:
                news = await self._news.get()
                if following.done():
                    following.result()
                    return
                yield news
        except Exception as error:
            kind = "" if isinstance(error, EngineError) else f"{type(error).__name__}: "
            logger.error("cannot go on: %s%s", kind, error, exc_info=bool(kind))
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"{kind}{error}")
        finally:
            self.is_followed = False
            following.cancel()
            if not self.ended.done():
                self.ended.set_result(None)

    async def close(self) -> None:
        """Ends everything that is under way."""
        for receive in self._receives.values():
            receive.task.cancel()
        for task in self._tasks:
            task.cancel()
        if ending := {*self._tasks, *(each.task for each in self._receives.values())}:
            await asyncio.wait(ending)

    async def _follow(self, commands: AsyncIterator[rank_pb2.RankCommand]) -> None:
        first = await anext(commands)
        rank = await self._load(first.join.store)
        self._say(0, pool_to_proto(rank.pool))
        async for command in commands:
            self._obey(rank, command)

    def _obey(self, rank: InProcessRank, command: rank_pb2.RankCommand) -> None:
        number = command.number
        match command.WhichOneof("command"):
            case "receive":
                receive = RankReceive(rank, command.receive, lambda news: self._say(number, news))
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
                logger.error("the first rank said %s, which is not known here", kind)

    async def _make_checksums(self, rank: InProcessRank, number: int, asked: rank_pb2.MakeChecksums) -> None:
        checksums = await rank.checksums(asked.block_ids, asked.units_per_block)
        self._say(number, worker_pb2.BlockChecksums(checksums=checksums))

    async def _clear(self, rank: InProcessRank, number: int, asked: rank_pb2.ClearBlocks) -> None:
        cleared = frozenset(asked.block_ids)
        ending = [each.task for each in self._receives.values() if not each.blocks.isdisjoint(cleared)]
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending)
        await rank.clear(asked.block_ids, asked.wiped_ids)
        self._say(number, rank_pb2.BlocksCleared())

    def _start(self, number: int, answering: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(self._answer(number, answering))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, number: int, answering: Coroutine[Any, Any, None]) -> None:
        try:
            await answering
        except Exception as error:
            logger.exception("a command of the first rank failed")
            self._say(number, rank_pb2.RankFailure(kind=type(error).__name__, message=str(error)))

    def _say(self, number: int, message: Message) -> None:
        field = FIELDS[type(message)]
        self._news.put_nowait(rank_pb2.RankNews(number=number, **{field: message}))  # type: ignore[arg-type]
