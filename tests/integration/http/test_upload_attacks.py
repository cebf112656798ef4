"""The cost of upload attacks for a real router: memory, delays for other clients, and log lines."""

import asyncio
from pathlib import Path

import psutil
import pytest

from tests.faults.attacks import aborted_uploads, attacker, held_uploads, poison_bodies
from tests.integration.router_process import RouterProcess, router_process

FLAGS = ("--port=0", "--grpc-port=0")
MIB = 1 << 20
NUM_LINES = 500


def rss(router: RouterProcess) -> int:
    return int(psutil.Process(router.child.pid).memory_info().rss)


def address_of(router: RouterProcess) -> str:
    return f"127.0.0.1:{router.port}"


@pytest.mark.slow
async def test_aborted_uploads_leave_no_memory(tmp_path: Path) -> None:
    async with router_process(tmp_path, *FLAGS) as router:
        await aborted_uploads(address_of(router), num_uploads=3)
        before = rss(router)
        await aborted_uploads(address_of(router), num_uploads=60)
        assert rss(router) - before < 60 * MIB  # of 900 MiB received


@pytest.mark.slow
async def test_uploads_at_once_have_a_bound(tmp_path: Path) -> None:
    async with router_process(tmp_path, *FLAGS) as router:
        before = rss(router)
        holding = asyncio.create_task(held_uploads(address_of(router), num_held=8, time_s=30.0))
        most = 0
        while not holding.done():
            most = max(most, rss(router))
            await asyncio.wait((holding,), timeout=0.01)
        assert (await holding).keys() == {429, None}
        assert most - before < 300 * MIB  # of 900 MiB sent


@pytest.mark.slow
async def test_poisoned_bodies_are_responded_to(tmp_path: Path) -> None:
    async with router_process(tmp_path, *FLAGS) as router:
        statuses = await poison_bodies(address_of(router))
        assert set(statuses.values()) <= {400, 413, 503}, statuses


@pytest.mark.slow
async def test_poisoned_bodies_leave_no_memory(tmp_path: Path) -> None:
    async with router_process(tmp_path, *FLAGS) as router:
        await poison_bodies(address_of(router))
        before = rss(router)
        await poison_bodies(address_of(router))
        assert rss(router) - before < 100 * MIB


async def test_the_log_has_few_lines_of_many_errors(tmp_path: Path) -> None:
    async with router_process(tmp_path, *FLAGS) as router:
        for _ in range(NUM_LINES):
            async with attacker(address_of(router)) as connection:
                await connection.send(b"no HTTP\r\n\r\n")
                assert await connection.status() == 400
        assert 20 <= router.log().count("Invalid HTTP request") < NUM_LINES / 2
