"""The KV pool of a simulated worker: only block ids and the time of their transfer exist."""

from collections.abc import Sequence

from baton.protos import worker_pb2
from baton.simulation.engine.clock import sleep_until
from baton.simulation.engine.link import Link

TRANSPORT = "simulated"
CHECKSUM = 0  # of every block


class LinkReceive:
    """The receive of one request's blocks over the worker's link; see `KVReceive`."""

    transport = TRANSPORT

    def __init__(self, link: Link, num_known_blocks: int) -> None:
        self.num_blocks_read = num_known_blocks
        self.num_blocks_expected = num_known_blocks
        self.transfer_s = 0.0
        self._link = link

    @property
    def num_blocks_received(self) -> int:
        """Blocks read whose checksums are known."""
        return min(self.num_blocks_read, self.num_blocks_expected)

    async def read(self, first_index: int, remote: Sequence[int]) -> None:
        """Return when the blocks that are missing here have been read."""
        num_blocks = first_index + len(remote) - self.num_blocks_read
        if num_blocks > 0:
            await sleep_until(self._link.reserve(num_blocks))
            self.num_blocks_read += num_blocks
            self.transfer_s += self._link.read_s(num_blocks)

    def expect(self, first_index: int, checksums: Sequence[int]) -> None:
        """Count the checksums, which are always right."""
        self.num_blocks_expected = max(self.num_blocks_expected, first_index + len(checksums))

    async def settled(self) -> None:
        """Return at once: nothing is compared."""


class SimulatedPool:
    """The pool of a worker with one rank; see `KVPools`."""

    size = 1
    block_bytes = 1  # there is nothing to compute checksums of, so that one message has those of many blocks

    def __init__(self, description: worker_pb2.KVPool, link: Link) -> None:
        self._description = description
        self._link = link

    def describe(self) -> list[worker_pb2.KVPool]:
        """Return the pool's description for peers."""
        return [self._description]

    async def receive(
        self, pools: Sequence[worker_pb2.KVPool], block_table: Sequence[int], num_known_blocks: int, deadline_s: float
    ) -> LinkReceive:
        """Return a receive of blocks; the first `num_known_blocks` are here already."""
        return LinkReceive(self._link, num_known_blocks)

    async def checksums(self, blocks: Sequence[int], units_per_block: int) -> list[int]:
        """Return a checksum per block."""
        return [CHECKSUM] * len(blocks)

    def units_for(self, num_readers: int) -> int:
        """Return 1: blocks are not divided."""
        return 1

    async def clear(self, blocks: Sequence[int], wiped: Sequence[int] = ()) -> None:
        """Return at once: there are no bytes."""
