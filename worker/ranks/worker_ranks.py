"""The follower ranks of a worker: its first rank, this process, starts and ends them."""

import asyncio
import os
import shutil
import sys
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
from baton.process.child import ChildProcess, ProcessSpec
from baton.process.logs import log_level
from baton.rpc.grpc_options import LOCAL_OPTIONS
from baton.rpc.unix_sockets import socket_parent, unix_address
from baton.settings.flags import flags_of
from baton.worker.config import WorkerConfig
from baton.worker.ranks.fixed_group import FixedGroup, tensor_group
from baton.worker.ranks.remote_rank import RemoteRank

END_TIMEOUT_S = 10.0  # from SIGTERM to SIGKILL of a follower
SELF_END_TIMEOUT_S = 5.0  # for a rank whose stream has ended, to end by itself: its exit status says why


class WorkerRanks:
    """The follower processes and the streams to them."""

    def __init__(self, config: WorkerConfig) -> None:
        size = config.tensor_parallel
        loop = asyncio.get_running_loop()

        def on_store(address: str) -> None:
            loop.call_soon_threadsafe(self._join, address)

        membership = FixedGroup(size, 0, on_store)
        self.tensor = tensor_group(config, membership)
        self.failed: asyncio.Future[None] = loop.create_future()  # fails with the lost rank and the reason
        self.followers: list[RemoteRank] = []
        self._membership = membership
        self._config = config
        self._directory = Path(tempfile.mkdtemp(prefix="baton-ranks-", dir=socket_parent()))
        self._processes: dict[int, ChildProcess] = {}  # by rank
        self._channels: list[grpc.aio.Channel] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False
        self._call: Callable[[], object] | None = None

    async def start(self) -> None:
        """Start the followers; the group forms once they accept commands."""
        sockets = {rank: self._directory / f"{rank}" for rank in range(1, self._config.tensor_parallel)}
        for rank, socket in sockets.items():
            self._processes[rank] = await ChildProcess.start(_spec(self._config, rank, socket))
        for rank, socket in sockets.items():
            channel = grpc.aio.insecure_channel(unix_address(socket), options=LOCAL_OPTIONS)
            self._channels.append(channel)
            self.followers.append(RemoteRank(rank, channel, partial(self._on_lost, rank)))
            self._begin_task(self._watch(rank))
            self._begin_task(_discard_progress(self._processes[rank]))
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
        """Kill the followers, which ends every wait for their responses."""
        for process in self._processes.values():
            process.kill()

    async def close(self) -> None:
        """End the followers; the engine must have stopped."""
        for follower in self.followers:
            await follower.close()
        for channel in self._channels:
            await channel.close(None)
        for process in self._processes.values():
            process.terminate()
        await asyncio.gather(*(_end(process) for process in self._processes.values()))
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        shutil.rmtree(self._directory, ignore_errors=True)

    async def _begin(self) -> None:
        for follower in self.followers:
            await follower.wait_listening()
        shutil.rmtree(self._directory, ignore_errors=True)  # all have connected; after a crash it would be left over
        self._membership.begin()

    def _join(self, store: str) -> None:
        for follower in self.followers:
            with suppress(PeerLost):  # already reported by `_on_lost`
                follower.join(store)

    def _on_lost(self, rank: int, error: PeerLost) -> None:
        """Fail the worker after the end of a rank's stream, unless it is shutting down."""
        if not self._is_closing:
            self._begin_task(self._end_lost(rank, error))

    async def _end_lost(self, rank: int, error: PeerLost) -> None:
        process = self._processes[rank]
        with suppress(TimeoutError):
            async with asyncio.timeout(SELF_END_TIMEOUT_S):
                await process.wait()  # its own exit reason is more precise
        self._fail(str(error))
        process.kill()

    async def _watch(self, rank: int) -> None:
        process = self._processes[rank]
        await process.wait()
        self.followers[rank - 1].gone.set()
        self._fail(f"rank {rank} of this worker {process.describe_end()}")

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


async def _end(process: ChildProcess) -> None:
    """Wait for a process to exit; kill it after the timeout."""
    try:
        async with asyncio.timeout(END_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
    process.close()


@asynccontextmanager
async def follower_ranks(config: WorkerConfig) -> AsyncIterator[WorkerRanks | None]:
    """Start a worker's follower ranks and end them afterwards; yield None if it has only one rank."""
    if config.tensor_parallel == 1:
        yield None
        return
    ranks = WorkerRanks(config)
    try:
        await ranks.start()
        yield ranks
    finally:
        ranks.leave_engine()
        await ranks.close()


def with_thread_share(config: WorkerConfig) -> WorkerConfig:
    """Return the config with each rank's share of the cores as `num_threads`, unless that is set."""
    if config.tensor_parallel == 1 or config.engine.num_threads is not None:
        return config
    num_threads = max(1, len(os.sched_getaffinity(0)) // config.tensor_parallel)
    return replace(config, engine=replace(config.engine, num_threads=num_threads))


async def _discard_progress(process: ChildProcess) -> None:
    async for _ in process.progress():
        pass


def _spec(config: WorkerConfig, rank: int, socket: Path) -> ProcessSpec:
    engine = replace(config.engine, device=_device(config.engine.device, rank))
    rank_config = replace(
        config,
        engine=engine,
        worker_id=f"{config.worker_id}-rank-{rank}",
        port=0,
        uds=None,
        kv_port=config.kv_port + config.kv_ports_of_a_rank * rank if config.kv_port else 0,
        registry=None,
        metrics_port=None,
        progress_fd=None,
    )
    # In our process group, so that a kill of the group ends all ranks.
    return ProcessSpec(rank_config.worker_id, _argv(rank_config, rank, socket), log_path=None, has_own_session=False)


def _argv(config: WorkerConfig, rank: int, socket: Path) -> tuple[str, ...]:
    words = ("-m", "baton.worker.ranks", f"--rank={rank}", f"--socket={socket}", f"--log-level={log_level()}")
    return (sys.executable, "-P", *words, *flags_of(config))


def _device(device: str, rank: int) -> str:
    """Return a rank's device: the first rank's for CPUs, consecutive GPU numbers otherwise."""
    kind, _, number = device.partition(":")
    return device if kind == "cpu" else f"{kind}:{int(number or 0) + rank}"
