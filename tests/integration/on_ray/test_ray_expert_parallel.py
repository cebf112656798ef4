"""A model's experts over the replicas of a pool on a real Ray, which are added, killed and removed under load."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import psutil
import pytest
import pytest_asyncio

from tests.integration.completion_load import CompletionLoad, completion_load
from tests.integration.handover.test_expert_parallel import completions
from tests.integration.on_ray.ray_application import DEADLINE_S, RayApplication, application_of_its_own
from tests.integration.on_ray.ray_cluster import command_line
from tests.integration.workers_view import workers

pytestmark = pytest.mark.slow

RANKS = 2


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def app(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RayApplication]:
    """Run one application for all tests here: a prefill worker with all experts, decode workers that share them."""
    options = {"expert_parallel": RANKS, "router": {"local_prefill_below": 0}}
    async with application_of_its_own(tmp_path_factory.mktemp("ray"), **options) as application:
        yield application


@asynccontextmanager
async def loaded(app: RayApplication) -> AsyncIterator[CompletionLoad]:
    """Run a load whose requests must all succeed with equal responses."""
    async with (
        httpx.AsyncClient(base_url=app.router_url, timeout=60, trust_env=False, verify=False) as client,
        completion_load(*[client] * 4) as load,
    ):
        await load.more(2)
        yield load
        await load.more(2)


def rendezvous(app: RayApplication) -> list[psutil.Process]:
    """Return the rendezvous' processes."""
    return [each for each in app.ray.processes() if "baton.membership.rendezvous" in command_line(each)]


async def test_tokens_equal_one_ranks(app: RayApplication, cluster_url: str) -> None:
    expected = await completions(cluster_url)
    assert await completions(app.router_url) == expected
    reported = await workers(app.router_url)
    assert sum(int(each["load"]["handovers"]) for each in reported if each["role"] == "decode") > 0
    for worker in reported:
        group = {"--group=decode", f"--expert-parallel={RANKS}"}
        is_rank = group <= {*command_line(app.ray.worker(worker["worker_id"]))}
        assert is_rank == (worker["role"] == "decode")
    assert len(rendezvous(app)) == 1


async def test_a_killed_rank_costs_no_request_and_no_token(app: RayApplication) -> None:
    before = await app.wait_workers("decode", RANKS)
    async with loaded(app) as load:
        first, second = sorted(before)
        os.kill(app.ray.worker(first).pid, signal.SIGKILL)
        await load.more(2)  # with the remaining rank
        await app.wait_workers("decode", RANKS, frozenset({first}))
        assert app.ray.worker(second).is_running()


async def test_a_killed_rendezvous_is_replaced_and_detects_the_next_killed_rank(app: RayApplication) -> None:
    before = await app.wait_workers("decode", RANKS)
    async with loaded(app) as load:
        [killed] = rendezvous(app)
        os.kill(killed.pid, signal.SIGKILL)
        await load.more(2)  # without a rendezvous
        async with asyncio.timeout(DEADLINE_S):
            while not {each.pid for each in rendezvous(app)} - {killed.pid}:
                await asyncio.sleep(0.1)
        [first, *_] = sorted(before)
        os.kill(app.ray.worker(first).pid, signal.SIGKILL)
        await load.more(2)
        await app.wait_workers("decode", RANKS, frozenset({first}))


async def test_the_pool_grows_and_shrinks_as_one_group(app: RayApplication) -> None:
    before = await app.wait_workers("decode", RANKS)
    processes = [app.ray.worker(each) for each in before]
    async with loaded(app) as load:
        await app.resize(RANKS + 1)
        grown = await app.wait_workers("decode", RANKS + 1)
        assert before < grown
        await load.more(2)
        assert all(process.is_running() for process in processes)
        await app.resize(RANKS)
        await app.wait_workers("decode", RANKS)
