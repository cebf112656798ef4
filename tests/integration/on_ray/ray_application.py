"""The example application on a real Ray, with the bundled model."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

import baton
from baton.deployment.local.ports import free_ports
from tests.integration.on_ray.ray_cluster import HOST, RayCluster, ray_cluster
from tests.integration.workers_view import workers
from tests.redis_server import redis_server

EXAMPLE = Path(__file__).parents[3] / "examples" / "ray_serve.yaml"
MODEL = Path(baton.__file__).parent / "bundled_model"
NAME = "baton-bundled"
DEADLINE_S = 90.0


@dataclass(frozen=True, slots=True)
class RayApplication:
    """A running application."""

    ray: RayCluster
    config: dict[str, Any]
    serve_url: str  # URL of Ray Serve's HTTP server
    router_url: str

    async def wait_workers(self, role: str, count: int, without: frozenset[str] = frozenset()) -> frozenset[str]:
        """Wait until exactly `count` workers of a role are ready, none of `without` among them; return their ids."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                seen = await workers(self.router_url)
                ready = frozenset(
                    each["worker_id"] for each in seen if each["role"] == role and each["state"] == "ready"
                )
                if len(ready) == count and not ready & without:
                    return ready
                await asyncio.sleep(0.1)

    async def resize(self, num_decode: int) -> None:
        """Resize the pool of decode workers, as `deployments` in the config file does."""
        [application] = self.config["applications"]
        sizes = [{"name": "prefill", "num_replicas": 1}, {"name": "decode", "num_replicas": num_decode}]
        await self.ray.deploy({**self.config, "applications": [{**application, "deployments": sizes}]})


@asynccontextmanager
async def ray_application(ray: RayCluster, registry: str, **args: object) -> AsyncIterator[RayApplication]:
    """Start a prefill worker, two decode workers and a router, and wait for them; `args` override the example's."""
    http_port, router_port = free_ports(HOST, 2)
    config = yaml.safe_load(EXAMPLE.read_text())
    config |= {"proxy_location": "HeadOnly", "http_options": {"host": HOST, "port": http_port}}
    [application] = config["applications"]
    application["args"] |= {
        "registry": registry,
        "model": str(MODEL),
        "served_model_name": NAME,
        "host": HOST,
        "port": router_port,
        "drain_timeout_s": 1,
        "lease_s": 2,
        "engine": {"dtype": "float32", "kv_cache_memory_bytes": "64MiB", "num_threads": 1},
        "router": {"local_prefill_below": 64},
        **args,
    }
    await ray.deploy(config)
    app = RayApplication(ray, config, f"http://{HOST}:{http_port}", f"http://{HOST}:{router_port}")
    try:
        await wait_listening(app.router_url)
        await app.wait_workers("prefill", 1)
        await app.wait_workers("decode", 2)
        await wait_listening(app.serve_url)
    except TimeoutError as error:
        raise AssertionError(ray.logs()) from error
    yield app


@asynccontextmanager
async def application_of_its_own(directory: Path, **args: object) -> AsyncIterator[RayApplication]:
    """Start an application with its own Ray and Redis in this directory."""
    async with (
        redis_server(directory / "redis", "--requirepass", "secret") as redis,
        ray_cluster() as ray,
        ray_application(ray, f"redis://:secret@{HOST}:{redis.port}/0", **args) as application,
    ):
        yield application


async def wait_listening(url: str) -> None:
    """Wait until the router at the URL reports that it is ready."""
    async with asyncio.timeout(DEADLINE_S), httpx.AsyncClient(trust_env=False, verify=False) as client:
        while True:
            try:
                if (await client.get(f"{url}/ready")).is_success:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.1)
