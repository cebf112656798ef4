"""The receive of one request's blocks, in the process of a follower rank."""

import asyncio
import logging
from collections.abc import Callable

from google.protobuf.message import Message

from baton.kvtransfer.errors import PeerRefused, TransferError
from baton.kvtransfer.receive import Receiver
from baton.protos import rank_pb2, worker_pb2
from baton.worker.ranks.ranks import Ranks

logger = logging.getLogger(__name__)

Step = worker_pb2.BlocksReady | worker_pb2.BlockChecksums


class RankReceive:
    """The task that reads a request's blocks; it ends after the last block, at an error, or when cancelled."""

    def __init__(self, rank: Ranks, command: rank_pb2.ReceiveBlocks, send: Callable[[Message], None]) -> None:
        """`send` sends progress and failures to the first rank."""
        self.blocks = frozenset(command.block_ids[command.num_known_blocks :])
        self._rank = rank
        self._command = command
        self._send = send
        self._steps: asyncio.Queue[Step] = asyncio.Queue(2 * len(command.block_ids) + 2)
        self.task = asyncio.create_task(self._run())

    def take(self, step: Step) -> None:
        """Queue announced blocks or checksums; more of them than there are blocks end the receive with an error."""
        try:
            self._steps.put_nowait(step)
        except asyncio.QueueFull:
            self._fail(PeerRefused("more announcements than blocks"))
            self.task.cancel()

    async def _run(self) -> None:
        try:
            await self._receive()
        except TransferError as error:
            self._fail(error)
        except Exception as error:
            logger.exception("a KV receive failed")
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._send(rank_pb2.RankFailure(kind=type(error).__name__, message=str(error)))

    async def _receive(self) -> None:
        command, rank = self._command, self._rank
        receiver = await rank.receive(command.pools, command.block_ids, command.num_known_blocks, command.deadline_s)
        peers = [
            rank_pb2.PeerTransport(incarnation=peer, transport=choice.transport, reason=choice.reason)
            for peer, choice in rank.choices.items()
        ]
        self._send(_progress(receiver, peers))
        while receiver.num_blocks_received < len(command.block_ids):
            step = await self._steps.get()
            try:
                if isinstance(step, worker_pb2.BlocksReady):
                    await receiver.read(step.first_index, step.block_ids)
                else:
                    receiver.expect(step.first_index, step.checksums)
            finally:
                self._send(_progress(receiver))  # received blocks count even if a later read fails


def _progress(receiver: Receiver, peers: list[rank_pb2.PeerTransport] | None = None) -> rank_pb2.ReceiveProgress:
    return rank_pb2.ReceiveProgress(
        transport=receiver.transport,
        peers=peers,
        num_read=receiver.num_blocks_read,
        num_received=receiver.num_blocks_received,
        transfer_s=receiver.transfer_s,
    )
