"""The ranks that follow this process, the first of a worker: it starts them, and they end with it."""

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc

from engine.errors import EngineEnded
from rpc.child_process import ChildProcess, ProcessSpec, describe_exit
from rpc.grpc_options import CHANNEL_OPTIONS
from rpc.options import flags_of
from rpc.ranks.fixed_group import FixedGroup, tensor_group
from rpc.ranks.follower_rank import FollowerRank
from rpc.worker_config import WorkerConfig

KV_PORTS = 2  # that a rank may want, of tcp and of nixl


class WorkerRanks:
    """Owns the processes of the other ranks and the streams to them."""

    def __init__(self, config: WorkerConfig) -> None:
        size = config.tensor_parallel
        loop = asyncio.get_running_loop()

        def on_store(address: str) -> None:
            loop.call_soon_threadsafe(self._join, address)

        membership = FixedGroup(size, 0, on_store)
        self.tensor = tensor_group(config, membership)
        self.failed: asyncio.Future[None] = loop.create_future()  # raises which rank is gone
        self.followers: list[FollowerRank] = []
        self._membership = membership
        self._config = config
        self._directory = Path(tempfile.mkdtemp(prefix="baton-ranks-"))
        self._processes: list[ChildProcess] = []
        self._channels: list[grpc.aio.Channel] = []
        self._watching: list[asyncio.Task[None]] = []
        self._call: Callable[[], object] | None = None

    async def start(self) -> None:
        """Starts the others; once they take commands, the group can form."""
        sockets = {rank: self._directory / f"{rank}" for rank in range(1, self._config.tensor_parallel)}
        for rank, socket in sockets.items():
            self._processes.append(await ChildProcess.start(_spec(self._config, rank, socket)))
        for (rank, socket), process in zip(sockets.items(), self._processes, strict=True):
            self._channels.append(grpc.aio.insecure_channel(f"unix:{socket}", options=CHANNEL_OPTIONS))
            self.followers.append(FollowerRank(rank, self._channels[-1]))
            self._watching += [
                asyncio.create_task(self._watch(rank, process)),
                asyncio.create_task(_discard_progress(process)),
            ]
        self._watching.append(asyncio.create_task(self._begin()))

    def attach(self, call: Callable[[], object]) -> None:
        """`call` has the engine look whether a rank is gone, between two steps."""
        self._call = call
        if self.failed.done():
            call()

    async def loaded(self) -> None:
        """Returns when every rank has its pool. Raises PeerLost."""
        for follower in self.followers:
            await follower.loaded()

    def leave_engine(self) -> None:
        """The engine waits for no other rank from now on."""
        self.tensor.leave()

    async def close(self) -> None:
        """Ends the other ranks, once the engine has stopped."""
        for task in self._watching:
            task.cancel()
        for follower in self.followers:
            await follower.close()
        for channel in self._channels:
            await channel.close(None)
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            await process.wait()
            process.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    async def _begin(self) -> None:
        for follower in self.followers:
            await follower.listens()
        self._membership.begin()

    def _join(self, store: str) -> None:
        for follower in self.followers:
            follower.join(store)

    async def _watch(self, rank: int, process: ChildProcess) -> None:
        status = await process.wait()
        self._membership.lose()
        if not self.failed.done():
            self.failed.set_exception(EngineEnded(f"rank {rank} of this worker {describe_exit(status)}"))
            self.failed.exception()  # whoever waits for it hears; nobody has to
        if self._call is not None:
            self._call()


@asynccontextmanager
async def following(config: WorkerConfig) -> AsyncIterator[WorkerRanks | None]:
    """The other ranks of a worker that has any, from their start to their end."""
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


def with_threads_of_its_own(config: WorkerConfig) -> WorkerConfig:
    """The worker's config, in which each of several ranks has a share of the cores unless somebody said otherwise."""
    if config.tensor_parallel == 1 or config.engine.num_threads is not None:
        return config
    num_threads = max(1, len(os.sched_getaffinity(0)) // config.tensor_parallel)
    return replace(config, engine=replace(config.engine, num_threads=num_threads))


async def _discard_progress(process: ChildProcess) -> None:
    async for _ in process.progress():
        pass


def _spec(config: WorkerConfig, rank: int, socket: Path) -> ProcessSpec:
    engine = replace(config.engine, device=_device(config.engine.device, rank))
    told = replace(
        config,
        engine=engine,
        worker_id=f"{config.worker_id}-rank-{rank}",
        kv_port=config.kv_port + KV_PORTS * rank if config.kv_port else 0,
        registry=None,
        metrics_port=None,
        progress_fd=None,
    )
    return ProcessSpec(told.worker_id, _argv(told, rank, socket), log_path=None)


def _argv(config: WorkerConfig, rank: int, socket: Path) -> tuple[str, ...]:
    return (sys.executable, "-P", "-m", "rpc.ranks", f"--rank={rank}", f"--socket={socket}", *flags_of(config))


def _device(device: str, rank: int) -> str:
    """Ranks have devices that follow each other, of the kind that the first one has."""
    kind, _, number = device.partition(":")
    return device if kind == "cpu" else f"{kind}:{int(number or 0) + rank}"
