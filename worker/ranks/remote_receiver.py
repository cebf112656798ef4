"""The receive of one request's blocks by a follower rank, seen from the first rank."""

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

SLACK_S = 10.0  # beyond the read deadline, which the rank itself checks and reports
ERRORS = {
    each.__name__: each
    for each in (ChecksumMismatch, PeerLost, PeerRefused, TransferDeadline, TransferFailed, TransportUnavailable)
}


class RemoteReceiver:
    """The rank's latest progress with these blocks; a Receiver."""

    def __init__(
        self, blocks: Sequence[int], num_known_blocks: int, deadline_s: float, send: Callable[[Message], None]
    ) -> None:
        """blocks: the request's block table; deadline_s: of a read; `send` sends the rank a message on this receive."""
        self.blocks = frozenset(blocks[num_known_blocks:])
        self.transport = ""
        self.num_blocks_read = num_known_blocks
        self.num_blocks_received = num_known_blocks
        self.transfer_s = 0.0
        self._num_blocks = len(blocks)
        self._send = send
        self._timeout_s = deadline_s + SLACK_S  # between two messages from the rank
        self._is_connected = False
        self._error: TransferError | None = None
        self._changed = asyncio.Event()

    @property
    def is_complete(self) -> bool:
        """Whether all blocks are received, so that no more writes follow."""
        return self._is_connected and self.num_blocks_received == self._num_blocks

    def take(self, progress: rank_pb2.ReceiveProgress) -> None:
        """Record the rank's progress."""
        self.transport = progress.transport
        self._is_connected = True
        self.num_blocks_read, self.num_blocks_received = progress.num_read, progress.num_received
        self.transfer_s = progress.transfer_s
        self._changed.set()

    def fail(self, error: TransferError) -> None:
        """End the receive: waiters get the first error."""
        self._error = self._error or error
        self._changed.set()

    async def connected(self) -> None:
        """Return when the rank is connected to the peer. Raises TransferError."""
        await self._until(lambda: self._is_connected)

    async def read(self, first_index: int, remote: Sequence[int]) -> None:
        """Send the announcement to the rank, and return when it has read the blocks. Raises TransferError."""
        self._send(worker_pb2.BlocksReady(first_index=first_index, block_ids=remote))
        await self._until(lambda: self.num_blocks_read >= first_index + len(remote))

    def expect(self, first_index: int, checksums: Sequence[int]) -> None:
        """Send checksums to the rank, which compares them after the reads sent before."""
        self._send(worker_pb2.BlockChecksums(first_index=first_index, checksums=checksums))

    async def settled(self) -> None:
        """Return when the rank has checked all blocks that it has read. Raises TransferError."""
        await self._until(lambda: self.num_blocks_received >= self.num_blocks_read)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self._error is not None:
                raise self._error
            self._changed.clear()
            try:
                async with asyncio.timeout(self._timeout_s):
                    await self._changed.wait()
            except TimeoutError as error:
                raise TransferDeadline(f"no message from a rank of this worker for {self._timeout_s:.1f} s") from error


def error_of(failure: rank_pb2.RankFailure, rank: int) -> TransferError:
    """Return the error that a rank has reported."""
    return ERRORS.get(failure.kind, TransferError)(f"rank {rank}: {failure.message}")
