"""The follower ranks of a worker: they connect to its first rank, this process, which starts those on its node."""

import asyncio
import logging
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from baton.engine.errors import EngineEnded
from baton.kvtransfer.errors import PeerLost
from baton.process.progress import ProgressReporter
from baton.protos import rank_pb2_grpc
from baton.rpc.grpc_options import LOCAL_OPTIONS, SERVER_OPTIONS
from baton.rpc.listening import listen
from baton.rpc.malformed import RefuseMalformed
from baton.rpc.tls import Security
from baton.rpc.unix_sockets import socket_parent, unix_address
from baton.worker.config import WorkerConfig
from baton.worker.ranks.first_rank import FirstRankService
from baton.worker.ranks.fixed_group import FixedGroup, tensor_group
from baton.worker.ranks.hello import hello_of
from baton.worker.ranks.node import format_ranks
from baton.worker.ranks.rank_process import RankProcess
from baton.worker.ranks.remote_rank import RankFailed, RemoteRank

logger = logging.getLogger(__name__)

SELF_END_TIMEOUT_S = 5.0  # for a rank whose stream has ended, to end by itself: its exit status says why


class WorkerRanks:
    """The followers' streams, and the processes of those on this node."""

    def __init__(self, config: WorkerConfig, stop: Callable[[], object]) -> None:
        """`stop` is called when the process of a follower got a SIGTERM: the worker has to drain."""
        size = config.tensor_parallel
        loop = asyncio.get_running_loop()

        def on_store(address: str) -> None:
            loop.call_soon_threadsafe(self._join, address)

        membership = FixedGroup(size, 0, on_store)
        self.tensor = tensor_group(config, membership)
        self.failed: asyncio.Future[None] = loop.create_future()  # fails with the lost rank and the reason
        self.followers = [RemoteRank(rank, partial(self._on_lost, rank), stop) for rank in range(1, size)]
        self._membership = membership
        self._config = config
        self._service = FirstRankService(hello_of(config, 0), self.followers)
        # Keepalives end the connection to a node that is lost.
        options = SERVER_OPTIONS if config.nnodes > 1 else LOCAL_OPTIONS
        self._server = grpc.aio.server(interceptors=[RefuseMalformed()], options=options)
        self._address = ""  # for other nodes
        self._directory = Path(tempfile.mkdtemp(prefix="baton-ranks-", dir=socket_parent()))
        self._processes: dict[int, RankProcess] = {}  # by rank, of those on this node
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False
        self._call: Callable[[], object] | None = None

    async def start(self, security: Security, progress: ProgressReporter) -> None:
        """Start the followers on this node; the group forms once all have connected."""
        config = self._config
        rank_pb2_grpc.add_FirstRankServicer_to_server(self._service, self._server)
        local = unix_address(self._directory / "0")  # in a directory that only our user may enter
        self._server.add_insecure_port(local)
        if config.nnodes > 1:
            self._address = listen(self._server, security, config.host, config.master_port)
            progress.waiting(self._address)
            logger.info("waits for %d more nodes at %s", config.nnodes - 1, self._address)
        await self._server.start()
        for rank in config.ranks_here[1:]:
            self._processes[rank] = await RankProcess.start(config, rank, local)
            self._begin_task(self._watch(rank))
        self._begin_task(self._begin())

    def attach(self, call: Callable[[], object]) -> None:
        """Register `call`, which makes the engine check for lost ranks between two steps."""
        self._call = call
        if self.failed.done():
            call()

    async def loaded(self) -> None:
        """Return when every rank has its pool. Raises EngineEnded if one is lost."""
        for follower in self.followers:
            try:
                await follower.loaded()
            except PeerLost:
                await self.failed

    def leave_engine(self) -> None:
        """Stop the engine's waits for other ranks."""
        self._is_closing = True
        self.tensor.leave()

    def kill(self) -> None:
        """End the followers at once, which ends every wait for their responses."""
        for process in self._processes.values():
            process.kill()
        for follower in self.followers:
            if follower.rank not in self._processes:
                follower.lose(PeerLost(f"rank {follower.rank} of this worker was given up"))

    async def close(self, error: BaseException | None = None) -> None:
        """End the followers; the engine must have stopped. error: with which the worker ends, if not in order."""
        failure = f"{type(error).__name__}: {error}" if error is not None else None
        if self.failed.done():
            failure = str(self.failed.exception())  # the cause of the error
        await asyncio.gather(*(follower.close(failure) for follower in self.followers))
        await asyncio.gather(*(process.end() for process in self._processes.values()))
        await self._server.stop(0)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        shutil.rmtree(self._directory, ignore_errors=True)

    async def _begin(self) -> None:
        try:
            async with asyncio.timeout(self._config.node_timeout_s):
                for follower in self.followers:
                    await follower.connected.wait()
        except TimeoutError:
            self._fail(self._missing())
            return
        shutil.rmtree(self._directory, ignore_errors=True)  # all have connected; after a crash it would be left over
        self._membership.begin()

    def _missing(self) -> str:
        config = self._config
        missing = next(each.rank for each in self.followers if not each.connected.is_set())
        node = missing // config.ranks_per_node
        if node == 0:
            return f"rank {missing} of this worker has not connected in {config.node_timeout_s:g} s"
        refused = f"; the last one refused: {self._service.last_refusal}" if self._service.last_refusal else ""
        return (
            f"node {node} ({format_ranks(config.ranks_on(node))}) has not connected to {self._address} in "
            f"{config.node_timeout_s:g} s{refused}"
        )

    def _join(self, store: str) -> None:
        for follower in self.followers:
            with suppress(PeerLost):  # already reported by `_on_lost`
                follower.join(store)

    def _on_lost(self, rank: int, error: PeerLost) -> None:
        """Fail the worker after the end of a rank's stream, unless it is shutting down."""
        if rank not in self._processes:
            self.followers[rank - 1].gone.set()
        if not self._is_closing:
            self._begin_task(self._end_lost(rank, error))

    async def _end_lost(self, rank: int, error: PeerLost) -> None:
        process = self._processes.get(rank)
        if process is None:
            self._fail(str(error))
            return
        if not isinstance(error, RankFailed):
            with suppress(TimeoutError):
                async with asyncio.timeout(SELF_END_TIMEOUT_S):
                    await process.wait()  # its own exit reason is more precise
        self._fail(str(error))
        process.kill()

    async def _watch(self, rank: int) -> None:
        process = self._processes[rank]
        await process.wait()
        self.followers[rank - 1].gone.set()
        self._fail(process.describe_end())

    def _fail(self, reason: str) -> None:
        self._membership.lose()
        if not self.failed.done():
            self.failed.set_exception(EngineEnded(reason))
            self.failed.exception()  # retrieved: there may be no waiter
        if self._call is not None:
            self._call()

    def _begin_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


@asynccontextmanager
async def follower_ranks(
    config: WorkerConfig, security: Security, progress: ProgressReporter, stop: Callable[[], object]
) -> AsyncIterator[WorkerRanks | None]:
    """Start a worker's follower ranks and end them afterwards; yield None if it has only one rank."""
    if config.tensor_parallel == 1:
        yield None
        return
    ranks, failure = WorkerRanks(config, stop), None
    try:
        await ranks.start(security, progress)
        yield ranks
    except BaseException as error:
        failure = error
        raise
    finally:
        ranks.leave_engine()
        await ranks.close(failure)


def with_thread_share(config: WorkerConfig) -> WorkerConfig:
    """Return the config with each rank's share of the node's cores as `num_threads`, unless that is set."""
    if config.tensor_parallel == 1 or config.engine.num_threads is not None:
        return config
    num_threads = max(1, len(os.sched_getaffinity(0)) // config.ranks_per_node)
    return replace(config, engine=replace(config.engine, num_threads=num_threads))
