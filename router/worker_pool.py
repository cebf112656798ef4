"""All workers that the router knows."""

import asyncio
import logging
from collections.abc import Sequence

from engine.block_hash import hash_blocks
from router.cluster import ClusterSnapshot
from router.prefix_index import PrefixIndex
from router.worker_connection import WorkerConnection

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

    def cached_tokens(self, cluster: ClusterSnapshot, token_ids: Sequence[int], cache_salt: str) -> dict[str, int]:
        """How many of a prompt's first tokens each worker has cached, by incarnation; 0 is left out."""
        sizes = {worker.incarnation: worker.block_size for worker in cluster.workers}
        cached: dict[str, int] = {}
        for block_size in set(sizes.values()):
            for incarnation, num_blocks in self.index.match(hash_blocks(token_ids, block_size, cache_salt)).items():
                if sizes.get(incarnation) == block_size:
                    cached[incarnation] = num_blocks * block_size
        return cached

    def max_model_len(self) -> int | None:
        """Longest prompt plus output that some decode worker takes; None if none is ready."""
        return max((worker.max_model_len for worker in self.snapshot().decoders()), default=None)

    async def wait_change(self, timeout_s: float) -> None:
        """Returns when a worker came or went, or after the time-out."""
        change = self._change
        try:
            await asyncio.wait_for(change.wait(), timeout_s)
        except TimeoutError:
            return

    def _notify(self) -> None:
        change, self._change = self._change, asyncio.Event()
        change.set()
