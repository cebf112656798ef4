"""Every fill ends in the engine, whenever it is cancelled, and only after the last write."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch

from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.outputs import StepOutput
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from baton.engine.scheduling.schedule import Received
from baton.kvtransfer.base import KVTransport, PoolIdentity
from baton.kvtransfer.factory import create_transport
from baton.kvtransfer.shared_memory.pool import SharedPool
from baton.worker.drain import Drain
from baton.worker.engine_host import EngineHost
from baton.worker.kv.receives import KVReceives
from tests.checkpoints import make_checkpoint


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("qwen3", tmp_path_factory.mktemp("fills") / "model")


@pytest_asyncio.fixture
async def hosted(model: Path) -> AsyncIterator[tuple[EngineHost, KVTransport]]:
    memory = SharedPool()
    config = EngineConfig(model=str(model), kv_cache_memory_bytes=1 << 20, num_threads=1)
    engine = Engine(config, memory.allocate)
    identity = PoolIdentity(uuid.uuid4().hex, engine.fingerprint)
    transport = create_transport("shared_memory", identity, memory, "127.0.0.1")
    host = EngineHost(engine, transport)
    host.start()
    yield host, transport
    await host.stop()
    await transport.close()
    memory.close()


@pytest.fixture
def host(hosted: tuple[EngineHost, KVTransport]) -> EngineHost:
    return hosted[0]


async def receiving(host: EngineHost) -> Request:
    """Return a request that has its blocks and waits for their KV."""
    admitted: asyncio.Future[Request] = asyncio.get_running_loop().create_future()

    def on_step(step: StepOutput) -> None:
        if step.receiving and not admitted.done():
            admitted.set_result(step.receiving[0])

    host.listen(on_step)
    sampling = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    request = Request(RequestId(uuid.uuid4().hex), list(range(3, 53)), 50, sampling, receives_kv=True)
    await host.call(lambda engine: engine.add(request))
    return await admitted


async def num_held(host: EngineHost) -> int:
    """Return the number of blocks in use; asserts that all blocks are accounted for."""
    await host.call(Engine.check_integrity)
    stats = await host.stats()
    return stats.num_blocks - stats.num_free_blocks


def nothing(_: "asyncio.Task[None]") -> Received:
    return Received(0)


async def test_a_fill_cancelled_before_its_first_step_ends(host: EngineHost) -> None:
    request = await receiving(host)
    fills = KVReceives(host, Drain())
    task = fills.start(request, asyncio.sleep(1000), nothing)
    host.call(lambda engine: engine.abort(request.request_id))
    task.cancel()
    await fills.close()
    assert await num_held(host) == 0


async def test_blocks_in_quarantine_are_not_freed(hosted: tuple[EngineHost, KVTransport]) -> None:
    host, transport = hosted
    request = await receiving(host)
    blocks = list(request.block_table)
    fills = KVReceives(host, Drain())
    task = fills.start(request, asyncio.sleep(1000), nothing)
    transport.quarantine.hold(blocks[1:3])
    await host.call(lambda engine: engine.abort(request.request_id))
    task.cancel()
    await asyncio.wait([task])
    closing = asyncio.ensure_future(fills.close())
    assert await num_held(host) == len(blocks)
    assert not closing.done()
    transport.quarantine.release(blocks[1:3])
    await closing
    assert await num_held(host) == 0


async def test_a_fill_that_fails_leaves_the_rest_to_the_engine(host: EngineHost) -> None:
    request = await receiving(host)

    async def fail() -> None:
        raise ConnectionError("gone")

    fills = KVReceives(host, Drain())
    fills.start(request, fail(), nothing)
    await fills.close()
    while await num_held(host):
        await asyncio.sleep(0.01)
    assert request.num_output_tokens == 3


async def test_an_ended_engine_blocks_no_fill(host: EngineHost) -> None:
    request = await receiving(host)
    fills = KVReceives(host, Drain())
    task = fills.start(request, asyncio.sleep(1000), nothing)
    await host.stop()
    task.cancel()
    async with asyncio.timeout(30):
        await fills.close()
    assert task.cancelled()


async def test_unchecked_bytes_are_zeroed(host: EngineHost) -> None:
    """A NaN in the unfilled part of a block would spread to every output that reads the block."""
    request = await receiving(host)
    blocks, pool = list(request.block_table), await host.call(lambda engine: engine.pool)
    cleared, clear = [], host.ranks.clear

    async def receive() -> None:
        pool[blocks] = torch.nan
        raise ConnectionError("gone")

    async def clear_and_look(*args: Any) -> None:
        await clear(*args)
        cleared.append([not pool[block].any() for block in blocks])
        pool[blocks] = 0  # for the engine, which continues with it

    host.ranks.clear = clear_and_look
    fills = KVReceives(host, Drain())
    fills.start(request, receive(), lambda _: Received(2 * host.config.block_size))
    await fills.close()
    assert cleared == [[index >= 2 for index in range(len(blocks))]]
