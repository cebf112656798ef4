"""A follower's stream to the first rank, whose commands are KV receives, checksums and clearing of blocks."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Protocol

import grpc
from google.protobuf.message import Message

from baton.engine.errors import EngineEnded, EngineError
from baton.kvtransfer.store.store import StoreUnavailable
from baton.process.errors import PlainError
from baton.protos import rank_pb2, rank_pb2_grpc, worker_pb2
from baton.rpc.pool_description import pool_to_proto
from baton.worker.ranks.rank_receive import RankReceive
from baton.worker.ranks.ranks import Ranks
from baton.worker.ranks.stored_receive import StoredReceive

logger = logging.getLogger(__name__)

REPORT_TIMEOUT_S = 2.0  # for the first rank to receive this one's failure
MAX_UNSENT = 1 << 16  # results that the first rank has not read; far more than its requests in progress need
FIELDS = {
    worker_pb2.KVPool: "pool",
    rank_pb2.ReceiveProgress: "progress",
    rank_pb2.RankFailure: "failure",
    worker_pb2.BlockChecksums: "checksums",
    rank_pb2.BlocksCleared: "cleared",
    rank_pb2.RankHello: "hello",
    rank_pb2.RankLeaving: "leaving",
    rank_pb2.AdapterRead: "adapter_read",
    rank_pb2.StoredDone: "stored_done",
}


class RankAdapters(Protocol):
    """The LoRA adapters of this rank's shard."""

    async def read(self, name: str, path: str, number: int) -> str:
        """Read an adapter and return its digest. Raises an EngineError if it cannot be used."""
        ...

    def drop(self, number: int) -> None:
        """Free an adapter's memory."""
        ...


class RankStoredKV(Protocol):
    """This rank's shards of blocks in the stores below its pool; see `RankSaver`."""

    def fetch(self, command: rank_pb2.FetchStored, send: Callable[[Message], None]) -> StoredReceive:
        """Begin to read blocks; `send` sends progress and failures to the first rank."""
        ...

    async def copy(self, command: rank_pb2.CopyStored) -> None:
        """Copy blocks out of the pool."""
        ...

    async def write(self, command: rank_pb2.WriteStored) -> None:
        """Queue copies for the stores."""
        ...

    async def clear(self, command: rank_pb2.ClearStored) -> int:
        """Delete all blocks of a store; return the number of their shards. Raises StoreUnavailable."""
        ...


FollowCall = grpc.aio.StreamStreamCall[rank_pb2.RankNews, rank_pb2.RankCommand]


class RankCommands:
    """The first rank's commands in progress. There is one stream, which lives as long as the worker."""

    def __init__(
        self,
        hello: rank_pb2.RankHello,
        load: Callable[[str], Awaitable[Ranks]],
        adapters: RankAdapters,
        stored: RankStoredKV,
    ) -> None:
        """`load` joins the group at the first rank's store, and returns when this rank has loaded its shard."""
        self._load = load
        self._adapters = adapters
        self._stored = stored
        self._results: asyncio.Queue[rank_pb2.RankNews | None] = asyncio.Queue(MAX_UNSENT)  # None: the last one
        self._receives: dict[int, RankReceive] = {}
        self._fetches: dict[int, StoredReceive] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._call: FollowCall | None = None
        self.is_followed = False  # the first rank has accepted this one, and the stream is open
        self._send(0, hello)

    async def follow(self, channel: grpc.aio.Channel, leader: str, timeout_s: float) -> None:
        """Execute the commands of the first rank at `leader` until it ends the stream.

        It may start `timeout_s` seconds later. Raises PlainError if it does not, or refuses this rank, EngineEnded if
        the worker fails or the connection is lost, and the errors of `load`.
        """
        self._call = rank_pb2_grpc.FirstRankStub(channel).Follow(self._news(), wait_for_ready=True)
        try:
            await _accepted(self._call, leader, timeout_s)
            self.is_followed = True
            await self._follow(self._call)
        except grpc.aio.AioRpcError as error:
            raise _end_of(error, leader) from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise EngineEnded("this rank has ended its stream") from error
        finally:
            self.is_followed = False

    def leave(self) -> None:
        """Ask the first rank to drain the worker, because this process got a SIGTERM."""
        self._send(0, rank_pb2.RankLeaving())

    async def report(self, error: Exception) -> None:
        """Send the first rank the reason why this one ends, and wait until it has ended the stream."""
        self._send(0, _failure(error))
        self._put(None)
        if self._call is not None and not self._call.done():
            await asyncio.wait((asyncio.ensure_future(self._call.code()),), timeout=REPORT_TIMEOUT_S)

    async def _news(self) -> AsyncIterator[rank_pb2.RankNews]:
        while (news := await self._results.get()) is not None:
            yield news

    async def close(self) -> None:
        """End the stream, cancel all commands in progress, and wait for their end."""
        if self._call is not None:
            self._call.cancel()
        ending = {*self._tasks, *(each.task for each in self._writing())}
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending)

    async def _follow(self, call: FollowCall) -> None:
        commands = aiter(call)
        first = await anext(commands, None)
        if first is None:
            return  # the worker ended before it began
        rank = await self._loaded(call, first.join.store)
        if rank is None:
            await anext(commands, None)  # raises the error with which the stream has ended
            return
        self._send(0, pool_to_proto(rank.pool))
        async for command in commands:
            self._execute(rank, command)

    async def _loaded(self, call: FollowCall, store: str) -> Ranks | None:
        """Load, and return None if the stream ends first."""
        loading = asyncio.ensure_future(self._load(store))
        ended = asyncio.ensure_future(call.code())
        try:
            await asyncio.wait((loading, ended), return_when=asyncio.FIRST_COMPLETED)
            return loading.result() if loading.done() else None
        finally:
            loading.cancel()
            ended.cancel()

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
            case "read_adapter":
                self._start(number, self._read_adapter(number, command.read_adapter))
            case "drop_adapter":
                self._adapters.drop(command.drop_adapter.adapter)
            case "fetch_stored":
                fetch = self._stored.fetch(command.fetch_stored, lambda message: self._send(number, message))
                self._fetches[number] = fetch
                fetch.task.add_done_callback(lambda _: self._fetches.pop(number, None))
            case "copy_stored":
                self._start(number, self._done(number, self._stored.copy(command.copy_stored)))
            case "write_stored":
                self._start(number, self._done(number, self._stored.write(command.write_stored)))
            case "clear_stored":
                self._start(number, self._clear_stored(number, command.clear_stored))
            case kind:
                logger.error("unknown command from the first rank: %s", kind)

    async def _make_checksums(self, rank: Ranks, number: int, command: rank_pb2.MakeChecksums) -> None:
        checksums = await rank.checksums(command.block_ids, command.units_per_block)
        self._send(number, worker_pb2.BlockChecksums(checksums=checksums))

    async def _read_adapter(self, number: int, command: rank_pb2.ReadAdapter) -> None:
        try:
            digest = await self._adapters.read(command.name, command.path, command.adapter)
        except EngineError as error:  # the first rank refuses the adapter, and the worker goes on
            self._send(number, rank_pb2.AdapterRead(error=str(error)))
        else:
            self._send(number, rank_pb2.AdapterRead(digest=digest))

    async def _done(self, number: int, step: Coroutine[Any, Any, None]) -> None:
        await step
        self._send(number, rank_pb2.StoredDone())

    async def _clear_stored(self, number: int, command: rank_pb2.ClearStored) -> None:
        try:
            num_deleted = await self._stored.clear(command)
        except (StoreUnavailable, RuntimeError) as error:  # the worker goes on, and reports it
            self._send(number, rank_pb2.StoredDone(error=str(error)))
        else:
            self._send(number, rank_pb2.StoredDone(num_deleted=num_deleted))

    async def _clear(self, rank: Ranks, number: int, command: rank_pb2.ClearBlocks) -> None:
        cleared = frozenset(command.block_ids)
        ending = [each.task for each in self._writing() if not each.blocks.isdisjoint(cleared)]
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending)
        await rank.clear(command.block_ids, command.wiped_ids)
        self._send(number, rank_pb2.BlocksCleared())

    def _writing(self) -> list[RankReceive | StoredReceive]:
        """Return what writes into blocks."""
        return [*self._receives.values(), *self._fetches.values()]

    def _start(self, number: int, executing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(self._answer(number, executing))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, number: int, executing: Coroutine[Any, Any, None]) -> None:
        try:
            await executing
        except Exception as error:
            logger.exception("a command of the first rank failed")
            self._send(number, _failure(error))

    def _send(self, number: int, message: Message) -> None:
        field = FIELDS[type(message)]
        self._put(rank_pb2.RankNews(number=number, **{field: message}))  # type: ignore[arg-type]

    def _put(self, result: rank_pb2.RankNews | None) -> None:
        try:
            self._results.put_nowait(result)
        except asyncio.QueueFull:
            logger.error("the first rank has not read the last %d results: this rank ends", MAX_UNSENT)
            if self._call is not None:
                self._call.cancel()  # the worker ends with the stream, so no result is lost unnoticed


async def _accepted(call: FollowCall, leader: str, timeout_s: float) -> None:
    """Wait until the first rank has accepted this one, or the call has ended. Raises PlainError."""
    try:
        async with asyncio.timeout(timeout_s):
            await call.initial_metadata()
    except TimeoutError as error:
        raise PlainError(f"the worker's first rank is not at {leader}: no answer in {timeout_s:g} s") from error


def _end_of(error: grpc.aio.AioRpcError, leader: str) -> Exception:
    """Return the reason why this rank ends after its stream has ended with an error."""
    match error.code():
        case grpc.StatusCode.FAILED_PRECONDITION:
            return PlainError(f"the worker's first rank at {leader} refuses this one: {error.details()}")
        case grpc.StatusCode.ABORTED:
            return EngineEnded(f"the worker has failed, as its first rank at {leader} reports: {error.details()}")
    return EngineEnded(f"the first rank at {leader} is gone: {error.details()}")


def _failure(error: Exception) -> rank_pb2.RankFailure:
    return rank_pb2.RankFailure(kind=type(error).__name__, message=str(error))
