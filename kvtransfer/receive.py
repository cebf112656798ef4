"""The interface of receivers, without torch, which services with simulated pools do not import."""

from collections.abc import Sequence
from typing import Protocol


class Receiver(Protocol):
    """The receive of one request's blocks, or of one rank's parts of them; the errors are those of `BlockReceiver`."""

    @property
    def transport(self) -> str:
        """Names of the transports in use, joined by `+`."""
        ...

    @property
    def num_blocks_read(self) -> int:
        """Blocks read, checked or not."""
        ...

    @property
    def num_blocks_received(self) -> int:
        """Blocks read and checked."""
        ...

    @property
    def transfer_s(self) -> float:
        """Seconds spent in reads, checksums excluded."""
        ...

    async def read(self, first_index: int, remote: Sequence[int]) -> None:
        """Read the peer's blocks `remote`, whose ids are the same on all of its ranks, from `first_index` on."""
        ...

    def expect(self, first_index: int, checksums: Sequence[int]) -> None:
        """Record checksums of the blocks from `first_index` on: all of the peer's rank 0, then all of rank 1, etc."""
        ...

    async def settled(self) -> None:
        """Return when all blocks that are read and have a checksum have been compared. Raises TransferError."""
        ...
