"""The fetch of one request's blocks from stores, in the process of a follower rank."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from google.protobuf.message import Message

from baton.kvtransfer.errors import TransferError
from baton.kvtransfer.store.store import StoreUnavailable
from baton.kvtransfer.store.stored_read import StoredRead
from baton.kvtransfer.threads import run_in_thread
from baton.protos import rank_pb2
from baton.worker.kv.tier import Tier

logger = logging.getLogger(__name__)

CHECK_S = 0.005  # between two reports of progress


class StoredReceive:
    """The task that reads the blocks; once it has ended or is cancelled, nothing is written into them."""

    def __init__(
        self, read: StoredRead, blocks: Sequence[int], tiers: Sequence[Tier], send: Callable[[Message], None]
    ) -> None:
        """tiers: of each block; `send` sends progress to the first rank."""
        self.blocks = frozenset(blocks)
        self._read = read
        self._tiers = tiers
        self._send = send
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            reading, num_sent = run_in_thread("kv-fetch", self._read.run), 0
        except RuntimeError as error:  # the process has as many threads as it may
            logger.warning("a fetch of stored KV failed: %s", error)
            self._send(rank_pb2.ReceiveProgress(has_ended=True))
            return
        try:
            while not reading.done():
                await asyncio.wait((reading,), timeout=CHECK_S)
                num_read = len(self._read.durations_s)
                if num_read > num_sent and not reading.done():
                    num_sent = num_read
                    self._send(rank_pb2.ReceiveProgress(num_read=num_read))
            if (failure := reading.exception()) is not None:
                known = isinstance(failure, StoreUnavailable | TransferError)
                logger.warning("a fetch of stored KV failed: %s", failure, exc_info=None if known else failure)
        finally:
            num_read = self._read.abandon()
            if num_read < len(self._tiers):
                self._tiers[num_read].give_up(reading)
            self._send(rank_pb2.ReceiveProgress(num_read=num_read, has_ended=True))
