"""A rank that follows, as its first rank has it: the stream of commands to it."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

import grpc
from google.protobuf.message import Message

from baton.kvtransfer.base import PeerId, PoolDescription, TransportChoice
from baton.kvtransfer.errors import PeerLost
from baton.protos import rank_pb2, rank_pb2_grpc, worker_pb2
from baton.rpc.pool_description import pool_from_proto, pool_to_proto
from baton.worker.ranks.remote_receiver import RemoteReceiver, error_of

ANSWER_TIMEOUT_S = 60.0  # for what was asked: reads that were given up have ended long before
FollowCall = grpc.aio.StreamStreamCall[rank_pb2.RankCommand, rank_pb2.RankNews]

FIELDS = {
    rank_pb2.JoinRanks: "join",
    rank_pb2.ReceiveBlocks: "receive",
    worker_pb2.BlocksReady: "blocks",
    worker_pb2.BlockChecksums: "checksums",
    rank_pb2.MakeChecksums: "make_checksums",
    rank_pb2.ClearBlocks: "clear",
}


class RemoteRank:
    """Owns the stream to one follower, and what it was asked and has not answered."""

    def __init__(self, rank: int, channel: grpc.aio.Channel, on_lost: Callable[[PeerLost], None]) -> None:
        """rank: its place; the channel to its process, which may not listen yet.

        `on_lost` hears once that the stream is over, and sees to it that the process ends; then it sets `gone`.
        """
        self.rank = rank
        self.gone = asyncio.Event()  # its process has ended: it writes nothing any more
        self._on_lost = on_lost
        self.choices: dict[PeerId, TransportChoice] = {}
        self._unsent: asyncio.Queue[rank_pb2.RankCommand] = asyncio.Queue()  # holds what requests under way ask
        self._call: FollowCall = rank_pb2_grpc.RankStub(channel).Follow(self._commands(), wait_for_ready=True)
        self._numbers = itertools.count(1)
        self._intakes: dict[int, RemoteReceiver] = {}
        self._answers: dict[int, asyncio.Future[rank_pb2.RankNews]] = {}
        self._pool: asyncio.Future[PoolDescription] = asyncio.get_running_loop().create_future()
        self._error: PeerLost | None = None
        self._listening = asyncio.create_task(self._listen())

    @property
    def pool(self) -> PoolDescription:
        """See Rank; there is one once the rank has loaded."""
        return self._pool.result()

    async def listens(self) -> None:
        """Returns when its process takes commands."""
        await self._call.wait_for_connection()

    def join(self, store: str) -> None:
        """Has it load its part, once the first rank's store is at host:port `store`."""
        self._say(0, rank_pb2.JoinRanks(store=store))

    async def loaded(self) -> None:
        """Returns when it has a pool."""
        await asyncio.shield(self._pool)

    async def receive(
        self, sources: Sequence[PoolDescription], block_table: Sequence[int], num_known_blocks: int, deadline_s: float
    ) -> RemoteReceiver:
        """See Rank."""
        number = next(self._numbers)
        intake = RemoteReceiver(block_table, num_known_blocks, deadline_s, partial(self._say, number))
        self._intakes[number] = intake
        message = rank_pb2.ReceiveBlocks(
            pools=map(pool_to_proto, sources),
            block_ids=block_table,
            num_known_blocks=num_known_blocks,
            deadline_s=deadline_s,
        )
        self._say(number, message)
        await intake.connected()
        return intake

    async def checksums(self, blocks: Sequence[int], units_per_block: int) -> Sequence[int]:
        """See Rank. Raises PeerLost if the rank has ended."""
        message = rank_pb2.MakeChecksums(block_ids=blocks, units_per_block=units_per_block)
        return (await self._ask(message)).checksums.checksums

    async def clear(self, blocks: Sequence[int], wiped: Sequence[int] = ()) -> None:
        """See Rank. Of a rank that is lost, and with it the worker, the process's end is waited for."""
        cleared = frozenset(blocks)
        open_numbers = [number for number, each in self._intakes.items() if not each.blocks.isdisjoint(cleared)]
        for number in open_numbers:
            intake = self._intakes.pop(number)
            intake.fail(PeerLost("its blocks are wanted for something else"))  # nobody waits for them for ever
        if self._error is None and not open_numbers and not wiped:
            return
        try:
            await self._ask(rank_pb2.ClearBlocks(block_ids=blocks, wiped_ids=wiped))
        except PeerLost:
            await self.gone.wait()

    async def close(self) -> None:
        """Ends the stream."""
        self._call.cancel()
        await asyncio.wait([self._listening])

    async def _ask(self, message: Message) -> rank_pb2.RankNews:
        """Its answer. A rank that gives none is given up."""
        number = next(self._numbers)
        answer: asyncio.Future[rank_pb2.RankNews] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        try:
            self._say(number, message)
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await answer
        except TimeoutError:
            self._lose(PeerLost(f"rank {self.rank} of this worker does not answer"))
            raise PeerLost(f"rank {self.rank} of this worker does not answer") from None
        finally:
            del self._answers[number]

    def _say(self, number: int, message: Message) -> None:
        if self._error is not None:
            raise self._error
        field = FIELDS[type(message)]
        self._unsent.put_nowait(rank_pb2.RankCommand(number=number, **{field: message}))  # type: ignore[arg-type]

    async def _commands(self) -> AsyncIterator[rank_pb2.RankCommand]:
        while True:
            yield await self._unsent.get()

    async def _listen(self) -> None:
        why = "its process ended"
        try:
            async for news in self._call:
                self._take(news)
        except asyncio.CancelledError:
            why = "the worker ends"
        except grpc.aio.AioRpcError as error:
            why = f"{error.code().name}: {error.details()}"
        finally:
            self._lose(PeerLost(f"rank {self.rank} of this worker is gone: {why}"))

    def _take(self, news: rank_pb2.RankNews) -> None:
        kind = news.WhichOneof("news")
        if kind == "pool":
            self._pool.set_result(pool_from_proto(news.pool))
        elif news.number in self._answers:
            self._take_answer(self._answers[news.number], news)
        elif kind in ("progress", "failure"):
            self._take_of_intake(news)

    def _take_answer(self, answer: "asyncio.Future[rank_pb2.RankNews]", news: rank_pb2.RankNews) -> None:
        if answer.done():
            return
        if news.HasField("failure"):
            error = PeerLost(str(error_of(news.failure, self.rank)))
            answer.set_exception(error)
            self._lose(error)  # whatever it is, its memory is not as it should be
        else:
            answer.set_result(news)

    def _take_of_intake(self, news: rank_pb2.RankNews) -> None:
        intake = self._intakes.get(news.number)
        if intake is None:
            return  # nobody wants its blocks any more
        if news.HasField("failure"):
            intake.fail(error_of(news.failure, self.rank))
        else:
            intake.take(news.progress)
            if news.progress.peers:
                self.choices = {
                    PeerId(each.incarnation): TransportChoice(each.transport, each.reason)
                    for each in news.progress.peers
                }
        if intake.is_complete or not intake.blocks:
            del self._intakes[news.number]  # one that failed stays until its blocks are cleared

    def _lose(self, error: PeerLost) -> None:
        if self._error is not None:
            return
        self._error = error
        for intake in self._intakes.values():
            intake.fail(error)
        self._intakes.clear()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(error)
        if not self._pool.done():
            self._pool.set_exception(error)
            self._pool.exception()  # whoever waits for it hears; nobody has to
        self._on_lost(error)
