"""Beginnings and ends of a follower's stream to the first rank."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from baton.deployment.local.ports import free_ports
from baton.engine.config import EngineConfig
from baton.engine.errors import EngineEnded
from baton.process.errors import PlainError
from baton.process.progress import ProgressReporter
from baton.protos import rank_pb2, rank_pb2_grpc
from baton.rpc.tls import Plaintext
from baton.worker.config import WorkerConfig
from baton.worker.ranks import follower
from baton.worker.ranks.first_rank import FirstRankService
from baton.worker.ranks.follower import _sigterm_to_end
from baton.worker.ranks.hello import hello_of
from baton.worker.ranks.rank_commands import RankCommands
from baton.worker.ranks.rank_saver import RankSaver
from baton.worker.ranks.ranks import Ranks
from baton.worker.ranks.remote_rank import RemoteRank
from baton.worker.ranks.worker_ranks import WorkerRanks, follower_ranks
from tests.checkpoints import make_checkpoint
from tests.unit.worker.ranks.scripted_adapters import ScriptedAdapters

WAIT_S = 20.0


def hello(rank: int, **options: str) -> rank_pb2.RankHello:
    return rank_pb2.RankHello(rank=rank, options={"tensor_parallel": "2", **options})


class Loading:
    """A load that never ends."""

    def __init__(self) -> None:
        self.has_begun = asyncio.Event()
        self.is_cancelled = False

    async def __call__(self, _: str) -> Ranks:
        self.has_begun.set()
        try:
            return await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise


@asynccontextmanager
async def first_rank(directory: Path) -> AsyncIterator[tuple[grpc.aio.Server, grpc.aio.Channel, RemoteRank]]:
    """Run the server of a worker of two ranks, with a channel for the second."""
    follower = RemoteRank(1, lambda _: None)
    server = grpc.aio.server()
    rank_pb2_grpc.add_FirstRankServicer_to_server(FirstRankService(hello(0), [follower]), server)
    server.add_insecure_port(f"unix:{directory}/0")
    await server.start()
    async with asyncio.timeout(WAIT_S), grpc.aio.insecure_channel(f"unix:{directory}/0") as channel:
        yield server, channel, follower
    await server.stop(None)


async def test_a_rank_that_waits_for_the_first_one_can_be_ended(tmp_path: Path) -> None:
    async with asyncio.timeout(WAIT_S), grpc.aio.insecure_channel(f"unix:{tmp_path}/missing") as channel:
        commands = RankCommands(hello(1), Loading(), ScriptedAdapters(), RankSaver())
        following = asyncio.create_task(commands.follow(channel, "0", 600))
        await asyncio.sleep(0.05)  # for the call to begin
        await commands.close()
        with pytest.raises(EngineEnded, match="this rank has ended its stream"):
            await following


async def test_a_refused_rank_ends_with_the_reason(tmp_path: Path) -> None:
    async with first_rank(tmp_path) as (_, channel, follower):
        commands = RankCommands(hello(1, tensor_parallel="4"), Loading(), ScriptedAdapters(), RankSaver())
        with pytest.raises(PlainError, match="first rank at 0 refuses this one: tensor_parallel is '4' on rank 1"):
            await commands.follow(channel, "0", WAIT_S)
        assert not commands.is_followed
        assert not follower.connected.is_set()


async def test_the_end_of_the_first_rank_ends_a_load(tmp_path: Path) -> None:
    async with first_rank(tmp_path) as (server, channel, follower):
        loading = Loading()
        following = asyncio.create_task(
            RankCommands(hello(1), loading, ScriptedAdapters(), RankSaver()).follow(channel, "0", WAIT_S)
        )
        await follower.connected.wait()
        follower.join("here:1")
        await loading.has_begun.wait()
        await server.stop(None)
        with pytest.raises(EngineEnded, match="the first rank at 0 is gone"):
            await following
        assert loading.is_cancelled


async def test_the_end_of_a_worker_in_order_ends_a_load_in_order(tmp_path: Path) -> None:
    async with first_rank(tmp_path) as (_, channel, follower):
        loading = Loading()
        following = asyncio.create_task(
            RankCommands(hello(1), loading, ScriptedAdapters(), RankSaver()).follow(channel, "0", WAIT_S)
        )
        await follower.connected.wait()
        follower.join("here:1")
        await loading.has_begun.wait()
        await follower.close()
        await following


async def test_a_rank_that_is_lost_as_it_is_accepted_counts_as_lost() -> None:
    class Context:
        async def send_initial_metadata(self, _: object) -> None:
            raise asyncio.CancelledError

    async def news() -> AsyncIterator[rank_pb2.RankNews]:
        await asyncio.get_running_loop().create_future()
        yield rank_pb2.RankNews()

    lost: list[str] = []
    follower = RemoteRank(1, lambda error: lost.append(str(error)))
    context: Any = Context()
    with pytest.raises(asyncio.CancelledError):
        await anext(follower.commands(news(), context))
    assert follower.connected.is_set()
    assert lost == ["rank 1 of this worker is gone: its process or the connection ended"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("llama3", tmp_path_factory.mktemp("stream") / "model")


@asynccontextmanager
async def worker_with_a_follower(model: Path) -> AsyncIterator[tuple[WorkerRanks, asyncio.Task[None]]]:
    """Run the first rank of a worker over two nodes, with the stream of the second one."""
    [port] = free_ports("127.0.0.1", 1)
    engine = EngineConfig(model=str(model), kv_cache_memory_bytes=1 << 20)
    config = WorkerConfig(role="decode", worker_id="w", engine=engine, tensor_parallel=2, nnodes=2, master_port=port)
    async with asyncio.timeout(WAIT_S), grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        commands = RankCommands(hello_of(config, 1), Loading(), ScriptedAdapters(), RankSaver())
        following = asyncio.create_task(commands.follow(channel, "0", WAIT_S))
        try:
            async with follower_ranks(config, Plaintext(), ProgressReporter(None), lambda: None) as ranks:
                assert ranks is not None
                await ranks.followers[0].connected.wait()
                yield ranks, following
        finally:
            await asyncio.wait({following})


async def test_a_worker_that_ends_in_order_ends_other_nodes_in_order(model: Path) -> None:
    async with worker_with_a_follower(model) as (_, following):
        pass
    await following


async def test_a_worker_that_fails_gives_other_nodes_the_reason(model: Path) -> None:
    with suppress(ValueError):
        async with worker_with_a_follower(model) as (_, following):
            raise ValueError("no block")
    with pytest.raises(EngineEnded, match=r"the worker has failed, .*: ValueError: no block"):
        await following


async def test_a_lost_rank_is_the_reason_for_the_other_nodes(model: Path) -> None:
    with suppress(EngineEnded):
        async with worker_with_a_follower(model) as (ranks, following):
            ranks._fail("rank 2 of this worker is gone")
            raise EngineEnded("a step failed")
    with pytest.raises(EngineEnded, match=r"the worker has failed, .*: rank 2 of this worker is gone"):
        await following


class FakeCommands:
    """Commands of a first rank, which counts the signals that are passed on to it."""

    def __init__(self, is_followed: bool) -> None:
        self._is_followed = is_followed
        self.is_asked = asyncio.Event()
        self.num_leaves = 0

    @property
    def is_followed(self) -> bool:
        self.is_asked.set()
        return self._is_followed

    def leave(self) -> None:
        self.num_leaves += 1


@pytest.mark.parametrize(
    ("is_followed", "can_leave", "is_orphan", "num_leaves", "is_ended"),
    [
        (False, True, False, 0, True),
        (True, True, False, 1, False),
        (True, False, False, 0, False),  # the first rank on this node decides
        (True, True, True, 0, True),  # its node's process was killed
    ],
)
async def test_sigterm_ends_a_rank_or_drains_its_worker(
    is_followed: bool,
    can_leave: bool,
    is_orphan: bool,
    num_leaves: int,
    is_ended: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands: Any = FakeCommands(is_followed)
    ending = asyncio.create_task(_sigterm_to_end(commands, can_leave))
    await asyncio.sleep(0)
    if is_orphan:
        monkeypatch.setattr(follower, "is_orphan", lambda: True)
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(WAIT_S):
        await commands.is_asked.wait()
        if is_ended:
            await ending
    assert commands.num_leaves == num_leaves
    assert ending.done() is is_ended
    ending.cancel()
