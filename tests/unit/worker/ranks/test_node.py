"""A worker's other node: signals, the ends of its ranks, and checks of its machine."""

import asyncio
import os
import signal
from collections.abc import Callable
from dataclasses import replace

import pytest

from baton.doctor.finding import Unfit, warning
from baton.engine.config import EngineConfig
from baton.engine.errors import EngineEnded
from baton.engine.execution.visible_gpus import VisibleGpus
from baton.settings.values import OptionError
from baton.worker.config import WorkerConfig
from baton.worker.ranks import node

ENGINE = EngineConfig(model="m", kv_cache_memory_bytes=1 << 20)
CONFIG = WorkerConfig(role="decode", worker_id="w", engine=ENGINE, tensor_parallel=4, nnodes=2, node_rank=1)
WAIT_S = 20.0


class FakeRank:
    """A rank that ends when the test sets how."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.is_ended_in_order: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.is_terminated = False

    async def wait(self) -> bool:
        return await asyncio.shield(self.is_ended_in_order)

    def describe_end(self) -> str:
        return f"rank {self.number} has ended"

    def terminate(self) -> None:
        self.is_terminated = True

    async def end(self) -> None:
        self.terminate()


class FakeRanks:
    """The started ranks of a node; each starts once `is_open` is set."""

    def __init__(self) -> None:
        self.started: list[FakeRank] = []
        self.is_open = asyncio.Event()
        self.is_open.set()

    async def start(self, _: WorkerConfig, number: int, leader: str) -> FakeRank:
        assert leader == "127.0.0.1:29501"
        self.started.append(FakeRank(number))
        await self.is_open.wait()
        return self.started[-1]


@pytest.fixture
async def ranks(monkeypatch: pytest.MonkeyPatch) -> FakeRanks:
    fakes = FakeRanks()
    monkeypatch.setattr(node, "RankProcess", fakes)
    return fakes


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.001)


async def test_a_node_fails_if_any_of_its_ranks_does(ranks: FakeRanks) -> None:
    for results in ((True, True), (True, False), (False, True)):
        ranks.started.clear()
        running = asyncio.create_task(node.run_node(CONFIG))
        await wait_until(lambda: len(ranks.started) == 2)
        for rank, is_in_order in zip(ranks.started, results, strict=True):
            rank.is_ended_in_order.set_result(is_in_order)
        if all(results):
            await running
            continue
        with pytest.raises(EngineEnded, match=f"rank {2 + results.index(False)} has ended"):
            await running


async def test_after_a_signal_the_ends_of_ranks_are_in_order(ranks: FakeRanks) -> None:
    running = asyncio.create_task(node.run_node(CONFIG))
    await wait_until(lambda: len(ranks.started) == 2)
    os.kill(os.getpid(), signal.SIGTERM)
    await wait_until(lambda: all(rank.is_terminated for rank in ranks.started))
    for rank in ranks.started:
        rank.is_ended_in_order.set_result(False)  # by the signal, before it could handle it
    async with asyncio.timeout(WAIT_S):
        await running


async def test_a_signal_during_the_start_ends_the_rank_that_starts(ranks: FakeRanks) -> None:
    ranks.is_open.clear()
    running = asyncio.create_task(node.run_node(CONFIG))
    await wait_until(lambda: len(ranks.started) == 1)
    os.kill(os.getpid(), signal.SIGTERM)
    asyncio.get_running_loop().call_later(0.05, ranks.is_open.set)
    async with asyncio.timeout(WAIT_S):
        await running
    [rank] = ranks.started
    assert rank.is_terminated


async def test_the_machine_is_checked_before_ranks_start(ranks: FakeRanks, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int | None] = []

    def examine(pool_bytes: int | None) -> list[object]:
        sizes.append(pool_bytes)
        return [warning("pinned-memory", "too little", "raise it")]

    monkeypatch.setattr(node, "examine_machine", examine)
    with pytest.raises(Unfit, match="pinned-memory: too little"):
        await node.run_node(replace(CONFIG, strict=True))
    assert sizes == [2 << 20]  # of both ranks here
    monkeypatch.setattr(node, "gpus_here", lambda: VisibleGpus(1, "torch sees 1 GPU"))
    with pytest.raises(OptionError, match="device: cuda with 2 ranks needs 2 GPUs, but torch sees 1 GPU"):
        await node.run_node(replace(CONFIG, engine=replace(ENGINE, device="cuda")))
    assert not ranks.started
