"""A Ray that runs already: `baton serve` joins it, and a router outside of Ray uses its workers."""

import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
import trustme

from tests.integration.http.test_tls import BODY, PROMPT, flags, is_refused
from tests.integration.on_ray.ray_application import MODEL
from tests.integration.on_ray.ray_cluster import RayCluster, command_line, ray_cluster
from tests.integration.on_ray.ray_serve_command import ray_serve_command
from tests.integration.router_process import router_process, wait_router, wait_workers
from tests.integration.workers_view import workers
from tests.redis_server import RedisServer, redis_server
from tests.unit.rpc.test_tls import write

pytestmark = pytest.mark.slow


@dataclass(frozen=True, slots=True)
class RunningRay:
    """An empty Ray and a registry."""

    ray: RayCluster
    registry: RedisServer


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningRay]:
    """Run one for all tests here."""
    async with redis_server(tmp_path_factory.mktemp("ray") / "redis") as registry, ray_cluster() as ray:
        yield RunningRay(ray, registry)


def ours(ray: RayCluster) -> list[str]:
    """Return the command lines of our replicas and processes on a Ray."""
    lines = [" ".join(command_line(each)) for each in ray.processes()]
    return [
        line for line in lines if any(name in line for name in ("-m baton worker", "-m baton.router", "ServeReplica:"))
    ]


async def test_baton_serve_joins_a_ray_and_leaves_it_as_it_was(running: RunningRay, tmp_path: Path) -> None:
    where = ("--ray-address", running.ray.address, "--registry", running.registry.url)
    hand_over = ("--local-prefill-below", "64")  # otherwise the prompt is prefilled where it is cheaper
    async with ray_serve_command(tmp_path, *where, *hand_over, env=running.ray.env) as command:
        await command.answers()
        assert len(ours(running.ray)) == 6  # three replicas with one process each
        assert not any("raylet" in " ".join(command_line(each)) for each in command.started)
        await command.interrupt()
    assert ours(running.ray) == []
    assert running.ray.head.is_running


async def test_a_router_outside_of_ray_serves_through_replicas_that_speak_tls(
    running: RunningRay, tmp_path: Path
) -> None:
    authority = trustme.CA()
    await running.ray.deploy(without_router(running.registry.url, tmp_path / "replicas", authority))
    own = (f"--registry={running.registry.url}", "--port=0", *flags(tmp_path / "router", authority))
    async with router_process(tmp_path, *own, module=("baton", "router")) as router, router.client() as client:
        await wait_workers(client, 2)
        assert await handed_over(client) == len(PROMPT)
        before = {each["role"]: each for each in await workers(router.url)}
        for each in before.values():
            assert await is_refused(each["address"])

        # Serve's health checks are calls over TLS: it replaces the killed replica and no other.
        killed, kept = before["decode"]["worker_id"], before["prefill"]["worker_id"]
        os.kill(running.ray.worker(killed).pid, signal.SIGKILL)
        try:
            await wait_router(client, lambda view: killed not in ready(view) and len(ready(view)) == 2)
        except TimeoutError as error:
            raise AssertionError(running.ray.logs()) from error
        assert kept in ready({"workers": await workers(router.url)})
        assert await handed_over(client) == len(PROMPT)


def without_router(registry: str, directory: Path, authority: trustme.CA) -> dict[str, Any]:
    """Return Serve's config for one prefill and one decode worker with TLS."""
    files = write(directory, authority)
    look = {"health_check_period_s": 0.5}
    args = {
        "registry": registry,
        "model": str(MODEL),
        "router": False,
        "tls_cert": files.cert,
        "tls_key": files.key,
        "tls_ca": files.ca,
        "tls_server_name": files.server_name,
        "drain_timeout_s": 1,
        "lease_s": 2,
        "engine": {"dtype": "float32", "kv_cache_memory_bytes": "64MiB", "num_threads": 1},
        "prefill_ray": look,
        "decode_ray": look,
    }
    application = {"name": "pools", "route_prefix": None, "import_path": "baton.deployment.ray.app:build", "args": args}
    return {"proxy_location": "Disabled", "applications": [application]}


def ready(view: dict[str, Any]) -> set[str]:
    """Return the workers that are ready for requests."""
    return {each["worker_id"] for each in view["workers"] if each["state"] == "ready"}


async def handed_over(client: httpx.AsyncClient) -> int:
    """Run a request, which must succeed, and return the number of prompt tokens that were handed over."""
    answer = await client.post("/v1/completions", json=BODY, headers={"x-baton-plan": "remote"})
    assert answer.status_code == httpx.codes.OK, answer.text
    return int(answer.headers["x-baton-handed-over-tokens"])
