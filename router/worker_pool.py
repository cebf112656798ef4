"""All workers that the router knows."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from engine.block_hash import BlockHash
from router.cluster import ClusterSnapshot
from router.prefix_index import PrefixIndex
from router.worker_connection import WorkerConnection
from rpc.status import Unavailable

logger = logging.getLogger(__name__)


class WorkerPool:
    """Owns the connections to the workers and the index of their caches."""

    def __init__(self, addresses: Sequence[str], router_id: str, watch_interval_ms: int) -> None:
        self.index = PrefixIndex()
        self.connections = [
            WorkerConnection(address, router_id, watch_interval_ms, self.index, self._notify) for address in addresses
        ]
        self._change = asyncio.Event()
        self._turn = 0
        self._ended: Unavailable | None = None

    async def run(self) -> None:
        """Keeps all connections until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for connection in self.connections:
                tasks.create_task(connection.run(), name=f"worker {connection.address}")
            await asyncio.Event().wait()  # never set: also a pool without workers runs until cancelled

    def snapshot(self) -> ClusterSnapshot:
        """The workers that take requests now."""
        snapshots = (connection.snapshot() for connection in self.connections)
        return ClusterSnapshot(tuple(each for each in snapshots if each is not None), self._turn)

    def take_turn(self) -> None:
        """A request was routed."""
        self._turn += 1

    def connection(self, incarnation: str) -> WorkerConnection | None:
        """The connection to a worker in this life; None if it is gone."""
        for connection in self.connections:
            if connection.description is not None and connection.description.incarnation == incarnation:
                return connection
        return None

    def end(self, error: Unavailable) -> None:
        """Ends every request at the workers, and every wait for a worker, with the error."""
        self._ended = error
        for connection in self.connections:
            connection.fail_requests(error)
        self._notify()

    def cached_tokens(self, cluster: ClusterSnapshot, hashes: Callable[[int], Sequence[BlockHash]]) -> dict[str, int]:
        """How many of a prompt's first tokens each worker has cached, by incarnation; 0 is left out.

        `hashes` gives the prompt's block hashes for a block size.
        """
        sizes = {worker.incarnation: worker.block_size for worker in cluster.workers}
        cached: dict[str, int] = {}
        for block_size in set(sizes.values()):
            for incarnation, num_blocks in self.index.match(hashes(block_size)).items():
                if sizes.get(incarnation) == block_size:
                    cached[incarnation] = num_blocks * block_size
        return cached

    def max_model_len(self) -> int | None:
        """Longest prompt plus output that some decode worker takes; None if none is ready."""
        return max((worker.max_model_len for worker in self.snapshot().decoders()), default=None)

    async def wait_change(self, timeout_s: float) -> None:
        """Returns when a worker came or went, or after the time-out; raises what the pool ended with."""
        if self._ended is not None:
            raise self._ended
        change = self._change
        try:
            await asyncio.wait_for(change.wait(), timeout_s)
        except TimeoutError:
            return

    def _notify(self) -> None:
        change, self._change = self._change, asyncio.Event()
        change.set()
