"""What a worker asks of each of its ranks, of its own process and of those that follow it."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from baton.kvtransfer.base import PeerId, PoolDescription, TransportChoice


class BlockIntake(Protocol):
    """A request's blocks on their way into a rank; the same calls as `Intake`, with the same errors."""

    @property
    def transport(self) -> str:
        """Names of the transports that they come over."""
        ...

    @property
    def num_blocks_read(self) -> int:
        """Blocks that are here, checked or not."""
        ...

    @property
    def num_blocks_received(self) -> int:
        """Blocks that are here, whole and checked."""
        ...

    @property
    def transfer_s(self) -> float:
        """Seconds spent in reads."""
        ...

    async def read(self, first_index: int, remote: Sequence[int]) -> None:
        """Reads the peer's blocks, which stand in the block table from `first_index` on."""
        ...

    def expect(self, first_index: int, checksums: Sequence[int]) -> None:
        """Takes checksums of the blocks from `first_index` on."""
        ...

    async def settled(self) -> None:
        """Returns when all that was read and expected is compared. Raises what was wrong."""
        ...


class Rank(Protocol):
    """One rank's part of the worker's KV. Blocks have the same ids on all ranks."""

    @property
    def pool(self) -> PoolDescription:
        """How peers read it."""
        ...

    @property
    def choices(self) -> Mapping[PeerId, TransportChoice]:
        """The transport in use for each peer."""
        ...

    async def receive(
        self, sources: Sequence[PoolDescription], block_table: Sequence[int], num_known_blocks: int, deadline_s: float
    ) -> BlockIntake:
        """Gets ready to read a peer's ranks into blocks of which the first `num_known_blocks` are here already."""
        ...

    async def checksums(self, blocks: Sequence[int], units_per_block: int) -> Sequence[int]:
        """Checksums of blocks, in order; of each block one for every unit of it."""
        ...

    async def clear(self, blocks: Sequence[int], wiped: Sequence[int] = ()) -> None:
        """Returns once nothing can be written into `blocks` any more, by reads that were given up; zeroes `wiped`."""
        ...
