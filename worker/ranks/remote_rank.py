"""A follower rank as seen from the first rank: the stream of commands and results."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import suppress
from functools import partial

import grpc
from google.protobuf.message import Message

from baton.kvtransfer.base import PeerId, PoolDescription, TransportChoice
from baton.kvtransfer.errors import PeerLost
from baton.kvtransfer.store.store import Key, StoreUnavailable
from baton.protos import rank_pb2, worker_pb2
from baton.rpc.peers import Context
from baton.rpc.pool_description import pool_from_proto
from baton.worker.ranks.remote_receiver import RemoteReceiver, error_of
from baton.worker.ranks.remote_stores import RemoteFetch, RemoteSave

CLOSE_TIMEOUT_S = 2.0  # for a rank to end its stream
RESPONSE_TIMEOUT_S = 60.0  # of a command; abandoned reads end long before
READ_TIMEOUT_S = 600.0  # of an adapter, which may have GB and be on a network file system
MAX_UNSENT = 1 << 16  # commands that the rank has not read; far more than requests in progress need
MAX_REASON_CHARS = 1000  # of a failure; gRPC sends it in a header

FIELDS = {
    rank_pb2.JoinRanks: "join",
    rank_pb2.ReceiveBlocks: "receive",
    worker_pb2.BlocksReady: "blocks",
    worker_pb2.BlockChecksums: "checksums",
    rank_pb2.MakeChecksums: "make_checksums",
    rank_pb2.ClearBlocks: "clear",
    rank_pb2.ReadAdapter: "read_adapter",
    rank_pb2.DropAdapter: "drop_adapter",
    rank_pb2.FetchStored: "fetch_stored",
    rank_pb2.CopyStored: "copy_stored",
    rank_pb2.WriteStored: "write_stored",
    rank_pb2.ClearStored: "clear_stored",
}


class RankFailed(PeerLost):
    """The rank itself has reported why it ends."""


class RemoteRank:
    """The stream from one follower, with the commands that it has not answered."""

    def __init__(
        self, rank: int, on_lost: Callable[[PeerLost], None], on_leaving: Callable[[], object] = lambda: None
    ) -> None:
        """Wait for rank number `rank` to connect.

        `on_lost` is called once, when the stream has ended. It must end the process and then set `gone`. `on_leaving`
        is called if the rank's process got a SIGTERM.
        """
        self.rank = rank
        self.connected = asyncio.Event()
        self.gone = asyncio.Event()  # set when its process has ended and can write no more
        self._on_lost = on_lost
        self._on_leaving = on_leaving
        self.choices: dict[PeerId, TransportChoice] = {}
        self._unsent: asyncio.Queue[rank_pb2.RankCommand | None] = asyncio.Queue(MAX_UNSENT)  # None: ends the stream
        self._numbers = itertools.count(1)
        self._receivers: dict[int, RemoteReceiver | RemoteFetch] = {}
        self._responses: dict[int, asyncio.Future[rank_pb2.RankNews]] = {}
        self._pool: asyncio.Future[PoolDescription] = asyncio.get_running_loop().create_future()
        self._error: PeerLost | None = None
        self._failure: str | None = None  # why the stream is to end, if not in order
        self._ended = asyncio.Event()

    async def commands(
        self, news: AsyncIterator[rank_pb2.RankNews], context: Context
    ) -> AsyncGenerator[rank_pb2.RankCommand, None]:
        """Accept the rank, yield its commands, and execute its news, until either ends or `close`.

        Abort the call with the reason if the rank is lost or the worker fails.
        """
        self.connected.set()
        listening = asyncio.create_task(self._listen(news))
        try:
            await context.send_initial_metadata(())
            while (command := await self._unsent.get()) is not None:
                yield command
            if self._failure is not None:
                await context.abort(grpc.StatusCode.ABORTED, self._failure[:MAX_REASON_CHARS])
        finally:
            listening.cancel()
            self.lose(PeerLost(f"rank {self.rank} of this worker is gone: its process or the connection ended"))
            self._ended.set()

    @property
    def pool(self) -> PoolDescription:
        """How peers read this rank's pool; available after `loaded`."""
        return self._pool.result()

    def join(self, store: str) -> None:
        """Make the rank load its shard and join the store at `store` (host:port)."""
        self._send(0, rank_pb2.JoinRanks(store=store))

    async def loaded(self) -> None:
        """Return when the rank has loaded and has a pool. Raises PeerLost."""
        await asyncio.shield(self._pool)

    async def receive(
        self, pools: Sequence[worker_pb2.KVPool], block_table: Sequence[int], num_known_blocks: int, deadline_s: float
    ) -> RemoteReceiver:
        """Connect to a peer's ranks; see Rank. Raises TransferError."""
        number = next(self._numbers)
        receiver = RemoteReceiver(block_table, num_known_blocks, deadline_s, partial(self._send, number))
        self._receivers[number] = receiver
        message = rank_pb2.ReceiveBlocks(
            pools=pools,
            block_ids=block_table,
            num_known_blocks=num_known_blocks,
            deadline_s=deadline_s,
        )
        self._send(number, message)
        await receiver.connected()
        return receiver

    async def checksums(self, blocks: Sequence[int], units_per_block: int) -> Sequence[int]:
        """Return checksums; see Rank. Raises PeerLost if the rank has ended."""
        message = rank_pb2.MakeChecksums(block_ids=blocks, units_per_block=units_per_block)
        return (await self._ask(message)).checksums.checksums

    async def clear(self, blocks: Sequence[int], wiped: Sequence[int] = ()) -> None:
        """Clear blocks; see Rank. If the rank is lost, which ends the worker, return when its process has ended."""
        cleared = frozenset(blocks)
        open_numbers = [number for number, each in self._receivers.items() if not each.blocks.isdisjoint(cleared)]
        for number in open_numbers:
            receiver = self._receivers.pop(number)
            receiver.fail(PeerLost("the receive was aborted to clear its blocks"))  # wakes its waiters
        if self._error is None and not open_numbers and not wiped:
            return
        try:
            await self._ask(rank_pb2.ClearBlocks(block_ids=blocks, wiped_ids=wiped))
        except PeerLost:
            await self.gone.wait()

    def fetch_stored(self, tiers: Sequence[int], keys: Sequence[Key], blocks: Sequence[int]) -> RemoteFetch:
        """Begin to read blocks from stores; see StoringRank. Raises PeerLost if the rank has ended."""
        number, fetch = next(self._numbers), RemoteFetch(blocks)
        self._send(number, rank_pb2.FetchStored(keys=b"".join(keys), block_ids=blocks, tiers=tiers))
        self._receivers[number] = fetch
        return fetch

    def save_stored(self, blocks: Sequence[int]) -> RemoteSave:
        """Begin to copy blocks for stores; see StoringRank."""
        return RemoteSave(next(self._numbers), blocks, self._ask)

    async def clear_stored(self, tier: int) -> int:
        """Delete the blocks of a store; see StoringRank. Without a bound: a store that hangs must not end the rank."""
        done = (await self._response(rank_pb2.ClearStored(tier=tier))).stored_done
        if done.error:
            raise StoreUnavailable(f"rank {self.rank}: {done.error}")
        return done.num_deleted

    async def read_adapter(self, number: int, name: str, path: str) -> rank_pb2.AdapterRead:
        """Let the rank read a LoRA adapter. Raises PeerLost if the rank has ended."""
        message = rank_pb2.ReadAdapter(adapter=number, name=name, path=path)
        return (await self._ask(message, READ_TIMEOUT_S)).adapter_read

    def drop_adapter(self, number: int) -> None:
        """Let the rank free the memory of an adapter. Raises PeerLost if the rank has ended."""
        self._send(next(self._numbers), rank_pb2.DropAdapter(adapter=number))

    async def close(self, failure: str | None = None) -> None:
        """End the stream; failure: why the worker ends, if not in order."""
        self._end(failure)
        if self.connected.is_set():
            await asyncio.wait((asyncio.ensure_future(self._ended.wait()),), timeout=CLOSE_TIMEOUT_S)

    async def _ask(self, message: Message, timeout_s: float | None = None) -> rank_pb2.RankNews:
        """Send a command and return the response. A rank that does not respond in time counts as lost."""
        try:
            async with asyncio.timeout(timeout_s or RESPONSE_TIMEOUT_S):
                return await self._response(message)
        except TimeoutError:
            self.lose(PeerLost(f"rank {self.rank} of this worker does not answer"))
            raise PeerLost(f"rank {self.rank} of this worker does not answer") from None

    async def _response(self, message: Message) -> rank_pb2.RankNews:
        """Send a command and return the response. Raises PeerLost."""
        number = next(self._numbers)
        response: asyncio.Future[rank_pb2.RankNews] = asyncio.get_running_loop().create_future()
        self._responses[number] = response
        try:
            self._send(number, message)
            return await response
        finally:
            del self._responses[number]

    def _send(self, number: int, message: Message) -> None:
        if self._error is not None:
            raise self._error
        field = FIELDS[type(message)]
        command = rank_pb2.RankCommand(number=number, **{field: message})  # type: ignore[arg-type]
        try:
            self._unsent.put_nowait(command)
        except asyncio.QueueFull:
            error = PeerLost(f"rank {self.rank} of this worker has not read the last {MAX_UNSENT} commands")
            self.lose(error)
            raise error from None

    async def _listen(self, news: AsyncIterator[rank_pb2.RankNews]) -> None:
        try:
            async for result in news:
                self._on_result(result)
        except Exception as error:  # a message without sense, or the end of the connection
            self.lose(PeerLost(f"rank {self.rank} of this worker is gone: {type(error).__name__}: {error}"))
        finally:
            self._end()

    def _end(self, failure: str | None = None) -> None:
        self._failure = self._failure or failure
        with suppress(asyncio.QueueFull):  # it reads no commands: the stream ends with the server
            self._unsent.put_nowait(None)

    def _on_result(self, result: rank_pb2.RankNews) -> None:
        kind = result.WhichOneof("news")
        if kind == "pool":
            self._pool.set_result(pool_from_proto(result.pool))
        elif kind == "leaving":
            self._on_leaving()
        elif kind == "failure" and not result.number:
            self.lose(RankFailed(f"rank {self.rank} of this worker: {result.failure.kind}: {result.failure.message}"))
        elif result.number in self._responses:
            self._on_response(self._responses[result.number], result)
        elif kind in ("progress", "failure"):
            self._on_receive(result)

    def _on_response(self, response: "asyncio.Future[rank_pb2.RankNews]", result: rank_pb2.RankNews) -> None:
        if response.done():
            return
        if result.HasField("failure"):
            error = PeerLost(str(error_of(result.failure, self.rank)))
            response.set_exception(error)
            self.lose(error)  # after any failure the state of its memory is unknown
        else:
            response.set_result(result)

    def _on_receive(self, result: rank_pb2.RankNews) -> None:
        receiver = self._receivers.get(result.number)
        if receiver is None:
            return  # its receive has been aborted
        if result.HasField("failure"):
            receiver.fail(error_of(result.failure, self.rank))
        else:
            receiver.take(result.progress)
            if result.progress.peers:
                self.choices = {
                    PeerId(each.incarnation): TransportChoice(each.transport, each.reason)
                    for each in result.progress.peers
                }
        if receiver.is_complete or not receiver.blocks:
            del self._receivers[result.number]  # a failed one stays until its blocks are cleared

    def lose(self, error: PeerLost) -> None:
        """End the stream and all that waits for the rank, the first time."""
        if self._error is not None:
            return
        self._error = error
        self._end(str(error))
        for receiver in self._receivers.values():
            receiver.fail(error)
        self._receivers.clear()
        for response in self._responses.values():
            if not response.done():
                response.set_exception(error)
        if not self._pool.done():
            self._pool.set_exception(error)
            self._pool.exception()  # retrieved: there may be no waiter
        self._on_lost(error)
