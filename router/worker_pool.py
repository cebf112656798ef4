"""All workers that the router knows."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from zlib import crc32

from router.cluster import ClusterSnapshot
from router.prefix_index import PrefixIndex
from router.roster import Roster, make_roster
from router.worker_connection import WorkerConnection
from rpc.registry.base import Registry, RegistryView
from rpc.status import Unavailable

logger = logging.getLogger(__name__)


class WorkerPool:
    """Owns the connections to the workers and the index of their caches.

    The registry says which workers there are. A worker that is no longer listed is let go only once the connection to
    it is lost too: a lease that is missing says less of a worker than a stream that it answers.
    """

    def __init__(self, registry: Registry, model_name: str, router_id: str, watch_interval_ms: int) -> None:
        self.index = PrefixIndex()
        self.registry = registry
        self.view = RegistryView()  # as the registry told it last
        self._model_name = model_name
        self._router_id = router_id
        self._watch_interval_ms = watch_interval_ms
        self._connections: dict[str, WorkerConnection] = {}  # by address
        self._roster: Roster | None = None  # made when it is needed
        self._change = asyncio.Event()
        self._turn = 0
        self._seed = crc32(router_id.encode())
        self._ended: Unavailable | None = None

    async def run(self) -> None:
        """Follows the registry, and keeps a connection to each worker, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                await self.registry.follow(lambda view: self._reconcile(view, tasks))
        finally:
            await self.registry.close()

    @property
    def connections(self) -> list[WorkerConnection]:
        """One a worker, in the order in which they were listed first."""
        return list(self._connections.values())

    @property
    def unlearnt(self) -> list[str]:
        """Addresses of workers whose cache the router is about to learn."""
        return [connection.address for connection in self._connections.values() if connection.is_learning]

    @property
    def is_degraded(self) -> bool:
        """Whether requests may miss what is cached: the members, or the snapshot of one in reach, are still to come."""
        return not self.view.is_listed or bool(self.unlearnt)

    def snapshot(self) -> ClusterSnapshot:
        """The workers that take requests now."""
        snapshots = (connection.snapshot() for connection in self._connections.values())
        return ClusterSnapshot(tuple(each for each in snapshots if each is not None), self._turn, self._seed)

    def take_turn(self) -> None:
        """A request was routed."""
        self._turn += 1

    def connection(self, incarnation: str) -> WorkerConnection | None:
        """The connection to a worker in this life; None if it is gone."""
        return self._current().by_incarnation.get(incarnation)

    def end(self, error: Unavailable) -> None:
        """Ends every request at the workers, and every wait for a worker, with the error."""
        self._ended = error
        for connection in self._connections.values():
            connection.fail_requests(error)
        self._notify()

    def cached_tokens(self, cluster: ClusterSnapshot, hashes: Callable[[int], bytes]) -> dict[str, int]:
        """How many of a prompt's first tokens each worker has cached, by incarnation; 0 is left out.

        `hashes` gives the prompt's block hashes for a block size.
        """
        routable = {worker.incarnation for worker in cluster.workers}
        roster = self._current()
        cached: dict[str, int] = {}
        for block_size in roster.block_sizes:
            for incarnation, num_blocks in self.index.match(hashes(block_size)).items():
                connection = roster.by_incarnation.get(incarnation)
                if connection is None or connection.description is None or incarnation not in routable:
                    continue
                if connection.description.block_size == block_size:
                    cached[incarnation] = num_blocks * block_size
        return cached

    def max_model_len(self) -> int | None:
        """Longest prompt plus output that some decode worker takes; None if none is ready."""
        return self._current().max_model_len

    async def wait_change(self, timeout_s: float) -> None:
        """Returns when a worker came or went, or after the time-out; raises what the pool ended with."""
        if self._ended is not None:
            raise self._ended
        change = self._change
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await change.wait()

    def _reconcile(self, view: RegistryView, tasks: asyncio.TaskGroup) -> None:
        """Connects to who is new, and marks who is listed no more."""
        self._tell_others(view)
        self.view = view
        listed = dict.fromkeys(view.fixed)
        listed |= dict.fromkeys(member.address for member in view.members if member.model == self._model_name)
        for address in listed:
            if address not in self._connections:
                connection = WorkerConnection(
                    address, self._router_id, self._watch_interval_ms, self.index, self._notify
                )
                self._connections[address] = connection
                tasks.create_task(self._keep(connection), name=f"worker {address}")
        for connection in self._connections.values():
            connection.mark_listed(connection.address in listed)

    async def _keep(self, connection: WorkerConnection) -> None:
        """Runs the connection; once it has given up, the worker is forgotten."""
        await connection.run()
        del self._connections[connection.address]
        logger.info("the worker at %s is forgotten: it is in no registry and cannot be reached", connection.address)

    def _tell_others(self, view: RegistryView) -> None:
        """Says when the registry has workers of other models: a wrong name would else be hard to find."""
        others = {member.model for member in view.members} - {self._model_name}
        if others - {member.model for member in self.view.members}:
            names = ", ".join(sorted(others))
            logger.info(
                "workers of other models are left to their own routers: this one serves %s, not %s",
                self._model_name,
                names,
            )

    def _current(self) -> Roster:
        if self._roster is None:
            self._roster = make_roster(self._connections.values())
        return self._roster

    def _notify(self) -> None:
        self._roster = None
        change, self._change = self._change, asyncio.Event()
        change.set()
