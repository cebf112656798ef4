"""Workers of several ranks on a real Ray: a replica holds all ranks of a worker and is replaced as a whole."""

import os
import signal
from collections.abc import AsyncIterator

import httpx
import psutil
import pytest
import pytest_asyncio

from tests.integration.completion_load import completion_load
from tests.integration.handover.test_expert_parallel import completions
from tests.integration.on_ray.ray_application import RayApplication, application_of_its_own
from tests.integration.on_ray.ray_cluster import command_line
from tests.integration.workers_view import workers

pytestmark = pytest.mark.slow

RANKS = 2


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def app(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RayApplication]:
    """Run a prefill worker with the whole model, and two decode workers of two ranks each."""
    options = {"tensor_parallel": RANKS, "router": {"local_prefill_below": 0}}
    async with application_of_its_own(tmp_path_factory.mktemp("ray"), **options) as application:
        yield application


def followers(app: RayApplication, worker_id: str) -> list[psutil.Process]:
    """Return the processes of a worker's other ranks."""
    children = psutil.Process(app.ray.worker(worker_id).pid).children()
    return [each for each in children if "baton.worker.ranks" in command_line(each)]


async def test_tokens_equal_one_ranks_through_handover(app: RayApplication, cluster_url: str) -> None:
    expected = await completions(cluster_url)
    assert await completions(app.router_url) == expected
    reported = await workers(app.router_url)
    assert sum(int(each["load"]["handovers"]) for each in reported if each["role"] == "decode") > 0
    for worker in reported:
        assert len(followers(app, worker["worker_id"])) == (RANKS - 1 if worker["role"] == "decode" else 0)


async def test_a_killed_rank_costs_its_worker_and_no_request(app: RayApplication) -> None:
    before = await app.wait_workers("decode", 2)
    async with (
        httpx.AsyncClient(base_url=app.router_url, timeout=60, trust_env=False, verify=False) as client,
        completion_load(*[client] * 3) as load,
    ):
        await load.more(2)
        [first, second] = sorted(before)
        [killed] = followers(app, first)
        os.kill(killed.pid, signal.SIGKILL)
        await load.more(2)  # with the remaining worker
        await app.wait_workers("decode", 2, frozenset({first}))
        assert app.ray.worker(second).is_running()
        await load.more(3)
