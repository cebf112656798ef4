"""A simulated engine as services call it."""

import asyncio

import pytest

from baton.engine.errors import InvalidRequest
from baton.engine.outputs import StepOutput
from baton.engine.request import RequestStatus
from baton.protos import worker_pb2
from baton.simulation.engine.clock import LoopClock
from baton.simulation.engine.core import EngineCore
from baton.simulation.engine.request import SimulatedRequest
from baton.simulation.engine.spec import WorkerSpec
from baton.simulation.engine.tokens import Tokens
from baton.simulation.engine.virtual_time import run_in_virtual_time
from baton.simulation.workers.host import SimulatedHost

SPEC = WorkerSpec(block_size=4, num_blocks=11, max_num_seqs=4, max_num_batched_tokens=64)


def make_host() -> tuple[EngineCore, SimulatedHost]:
    core = EngineCore(SPEC, LoopClock(), Tokens(SPEC))
    return core, SimulatedHost(core, worker_pb2.KVPool(fingerprint="simulated"))


def request(request_id: str, num_tokens: int) -> SimulatedRequest:
    return SimulatedRequest(request_id=request_id, token_ids=list(range(num_tokens)), num_output_tokens=2)


def test_request_starts_when_a_lease_frees_its_blocks() -> None:
    async def run() -> None:
        core, host = make_host()
        first = request("first", 32).to_engine()
        await host.call(lambda engine: engine.add(first))
        await asyncio.sleep(1)
        pin = await host.call(lambda engine: engine.blocks.pin(first.block_hashes))
        assert pin.num_blocks == 8
        other = SimulatedRequest(request_id="other", token_ids=[5] * 30, num_output_tokens=2).to_engine()
        await host.call(lambda engine: engine.add(other))
        await asyncio.sleep(1)
        assert other.status is RequestStatus.WAITING  # 2 of 10 blocks are free
        await host.call(lambda engine: engine.blocks.pins.release(pin.pin_id))
        await asyncio.sleep(1)
        assert other.num_output_tokens == 2
        core.scheduler.check_integrity()
        assert (await host.stats()).num_free_blocks == 10

    run_in_virtual_time(run())


def test_calls_that_free_nothing_cause_no_output() -> None:
    async def run() -> None:
        _, host = make_host()
        outputs: list[StepOutput] = []
        host.listen(outputs.append)
        await host.call(lambda engine: engine.blocks.cache.take_changes())
        await asyncio.sleep(1)
        assert outputs == []

    run_in_virtual_time(run())


def test_errors_are_raised_in_the_caller() -> None:
    async def run() -> None:
        _, host = make_host()
        with pytest.raises(InvalidRequest, match="needs at least one token"):
            await host.call(lambda engine: engine.add(request("empty", 0).to_engine()))

    run_in_virtual_time(run())


def test_callbacks_of_a_call_run_before_its_waiter_goes_on() -> None:
    async def run() -> None:
        _, host = make_host()
        results: list[bool] = []
        pending = host.call(lambda engine: engine.abort(request("x", 1).to_engine().request_id))
        pending.add_done_callback(lambda done: results.append(done.result()))
        assert await host.wait_unless_short(pending)
        assert results == [False]

    run_in_virtual_time(run())
