"""A request's blocks on their way into the pool of a rank that follows: told to it, and heard from it."""

import asyncio
from collections.abc import Callable, Sequence

from google.protobuf.message import Message

from baton.kvtransfer.errors import (
    ChecksumMismatch,
    PeerLost,
    PeerRefused,
    TransferDeadline,
    TransferError,
    TransferFailed,
    TransportUnavailable,
)
from baton.protos import rank_pb2, worker_pb2

SLACK_S = 10.0  # a rank itself tells of a read that is late, and of a peer that does not answer
ERRORS = {
    each.__name__: each
    for each in (ChecksumMismatch, PeerLost, PeerRefused, TransferDeadline, TransferFailed, TransportUnavailable)
}


class RemoteReceiver:
    """What the rank has said of these blocks so far; see `BlockIntake`."""

    def __init__(
        self, blocks: Sequence[int], num_known_blocks: int, deadline_s: float, say: Callable[[Message], None]
    ) -> None:
        """blocks: the request's block table; deadline_s: of a read; `say` tells the rank something of these blocks."""
        self.blocks = frozenset(blocks[num_known_blocks:])
        self.transport = ""
        self.num_blocks_read = num_known_blocks
        self.num_blocks_received = num_known_blocks
        self.transfer_s = 0.0
        self._num_blocks = len(blocks)
        self._say = say
        self._patience_s = deadline_s + SLACK_S  # of whoever waits for news
        self._is_connected = False
        self._error: TransferError | None = None
        self._news = asyncio.Event()

    @property
    def is_complete(self) -> bool:
        """Whether all are here: nothing more is written into any of them."""
        return self._is_connected and self.num_blocks_received == self._num_blocks

    def take(self, progress: rank_pb2.ReceiveProgress) -> None:
        """The rank got on."""
        self.transport = progress.transport
        self._is_connected = True
        self.num_blocks_read, self.num_blocks_received = progress.num_read, progress.num_received
        self.transfer_s = progress.transfer_s
        self._news.set()

    def fail(self, error: TransferError) -> None:
        """No more blocks come; whoever waits for them hears why."""
        self._error = self._error or error
        self._news.set()

    async def connected(self) -> None:
        """Returns when the rank can read. Raises TransferError."""
        await self._until(lambda: self._is_connected)

    async def read(self, first_index: int, remote: Sequence[int]) -> None:
        """See BlockIntake."""
        self._say(worker_pb2.BlocksReady(first_index=first_index, block_ids=remote))
        await self._until(lambda: self.num_blocks_read >= first_index + len(remote))

    def expect(self, first_index: int, checksums: Sequence[int]) -> None:
        """See BlockIntake; the rank looks at them when it has read what it was told before."""
        self._say(worker_pb2.BlockChecksums(first_index=first_index, checksums=checksums))

    async def settled(self) -> None:
        """See BlockIntake."""
        await self._until(lambda: self.num_blocks_received >= self.num_blocks_read)

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            if self._error is not None:
                raise self._error
            self._news.clear()
            try:
                async with asyncio.timeout(self._patience_s):
                    await self._news.wait()
            except TimeoutError as error:
                raise TransferDeadline(f"a rank of this worker said nothing for {self._patience_s:.1f} s") from error


def error_of(failure: rank_pb2.RankFailure, rank: int) -> TransferError:
    """The error that a rank met."""
    return ERRORS.get(failure.kind, TransferError)(f"rank {rank}: {failure.message}")
