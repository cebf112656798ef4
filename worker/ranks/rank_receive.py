"""A request's blocks on their way into a rank that follows, as that rank has it."""

import asyncio
import logging
from collections.abc import Callable

from google.protobuf.message import Message

from baton.kvtransfer.errors import PeerRefused, TransferError
from baton.kvtransfer.receiver import KVReceiver
from baton.protos import rank_pb2, worker_pb2
from baton.rpc.pool_description import pool_from_proto
from baton.worker.ranks.ranks import InProcessRank

logger = logging.getLogger(__name__)

Step = worker_pb2.BlocksReady | worker_pb2.BlockChecksums


class RankReceive:
    """Owns the task that reads them; it ends with the last one, at an error, or cancelled."""

    def __init__(self, rank: InProcessRank, asked: rank_pb2.ReceiveBlocks, say: Callable[[Message], None]) -> None:
        """`say` tells the first rank how far it is."""
        self.blocks = frozenset(asked.block_ids[asked.num_known_blocks :])
        self._rank = rank
        self._asked = asked
        self._say = say
        self._steps: asyncio.Queue[Step] = asyncio.Queue(2 * len(asked.block_ids) + 2)
        self.task = asyncio.create_task(self._run())

    def take(self, step: Step) -> None:
        """Blocks that can be read, or checksums of them; more than there are blocks end it with an error."""
        try:
            self._steps.put_nowait(step)
        except asyncio.QueueFull:
            self._fail(PeerRefused("blocks were announced more often than there are any"))
            self.task.cancel()

    async def _run(self) -> None:
        try:
            await self._receive()
        except TransferError as error:
            self._fail(error)
        except Exception as error:
            logger.exception("receiving blocks failed")
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._say(rank_pb2.RankFailure(kind=type(error).__name__, message=str(error)))

    async def _receive(self) -> None:
        asked, rank = self._asked, self._rank
        sources = [pool_from_proto(pool) for pool in asked.pools]
        intake = await rank.receive(sources, asked.block_ids, asked.num_known_blocks, asked.deadline_s)
        peers = [
            rank_pb2.PeerTransport(incarnation=peer, transport=choice.transport, reason=choice.reason)
            for peer, choice in rank.choices.items()
        ]
        self._say(_progress(intake, peers))
        while intake.num_blocks_received < len(asked.block_ids):
            step = await self._steps.get()
            try:
                if isinstance(step, worker_pb2.BlocksReady):
                    await intake.read(step.first_index, step.block_ids)
                else:
                    intake.expect(step.first_index, step.checksums)
            finally:
                self._say(_progress(intake))  # what is here stays, whatever goes wrong with the next ones


def _progress(intake: KVReceiver, peers: list[rank_pb2.PeerTransport] | None = None) -> rank_pb2.ReceiveProgress:
    return rank_pb2.ReceiveProgress(
        transport=intake.transport,
        peers=peers,
        num_read=intake.num_blocks_read,
        num_received=intake.num_blocks_received,
        transfer_s=intake.transfer_s,
    )
