"""Reads of blocks that take time and move no bytes."""

import asyncio

import pytest

from baton.protos import worker_pb2
from baton.simulation.engine.clock import LoopClock
from baton.simulation.engine.link import Link
from baton.simulation.engine.spec import WorkerSpec
from baton.simulation.engine.virtual_time import run_in_virtual_time
from baton.simulation.workers.kv_pool import LinkReceive, SimulatedPool

SPEC = WorkerSpec(block_bytes=1000, link_bytes_per_s=1000)  # a block per second


def test_reads_of_all_requests_are_serial() -> None:
    async def run() -> None:
        link = Link(SPEC, LoopClock())
        one, other = LinkReceive(link, num_known_blocks=1), LinkReceive(link, num_known_blocks=0)
        await asyncio.gather(one.read(0, [7, 8, 9]), other.read(0, [7, 8]))
        assert asyncio.get_running_loop().time() == pytest.approx(4)
        assert (one.num_blocks_read, other.num_blocks_read) == (3, 2)
        assert (one.transfer_s, other.transfer_s) == pytest.approx((2, 2))  # without waiting for each other
        assert link.num_bytes == 4000
        await one.read(0, [7, 8])  # known already
        assert asyncio.get_running_loop().time() == pytest.approx(4)

    run_in_virtual_time(run())


def test_blocks_are_received_once_their_checksums_are_known() -> None:
    async def run() -> None:
        pool = SimulatedPool(worker_pb2.KVPool(), Link(SPEC, LoopClock()))
        receive = await pool.receive(pool.describe(), range(3), 0, deadline_s=1.0)
        await receive.read(0, [4, 5, 6])
        assert (receive.num_blocks_read, receive.num_blocks_received) == (3, 0)
        receive.expect(0, await pool.checksums([4, 5], pool.units_for(1)))
        assert (receive.num_blocks_expected, receive.num_blocks_received) == (2, 2)

    run_in_virtual_time(run())


def test_an_interrupted_read_brings_nothing() -> None:
    async def run() -> None:
        receive = LinkReceive(Link(SPEC, LoopClock()), 0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(receive.read(0, [1, 2]), 1.5)
        assert (receive.num_blocks_read, receive.transfer_s) == (0, 0)

    run_in_virtual_time(run())
