"""Real workers and a real router that find each other in a real Redis."""

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
from redis.asyncio import Redis

import baton
from baton.settings.names import Role
from tests.integration.membership.registry_router import registry_router, wait_ready_workers, wait_view
from tests.integration.worker_process import WorkerProcess, worker_process, worker_processes
from tests.redis_server import HOST, redis_server

MODEL = Path(baton.__file__).parent / "bundled_model"
BODY = {
    "prompt": list(range(300, 400)),
    "max_tokens": 8,
    "temperature": 0,
    "ignore_eos": True,
    "return_token_ids": True,
}
LEASE_S = "2"


async def complete(client: httpx.AsyncClient) -> tuple[list[int], str]:
    """Return the tokens of a completion and its decode worker."""
    response = await client.post("/v1/completions", json=BODY)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["token_ids"], response.headers["x-baton-decode"]


async def start_workers(stack: AsyncExitStack, registry: str, directory: Path, *roles: Role) -> list[WorkerProcess]:
    """Start registered workers, numbered from 0, that end with the stack."""
    flags = ("--registry", registry, "--lease-s", LEASE_S, "--dtype", "float32")
    return await stack.enter_async_context(worker_processes(MODEL, directory, *((role, *flags) for role in roles)))


async def test_a_cluster_with_a_redis_registry(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(redis_server(tmp_path / "redis"))
        await start_workers(stack, server.url, tmp_path, "prefill", "decode")
        client = await stack.enter_async_context(registry_router(server.url, MODEL, tmp_path))
        await wait_ready_workers(client, "prefill-0", "decode-1")
        expected, decode = await complete(client)
        assert decode == "decode-1"

        await server.kill()
        await wait_view(client, lambda view: not view["router"]["registry"]["connected"])
        assert (await client.get("/ready")).status_code == 200
        assert await complete(client) == (expected, "decode-1")
        await server.start()
        await wait_view(client, lambda view: view["router"]["registry"]["members"] == 2)
        assert await complete(client) == (expected, "decode-1")

        [newcomer] = await start_workers(stack, server.url, tmp_path, "decode")
        await wait_ready_workers(client, "prefill-0", "decode-1", "decode-2")
        os.kill(newcomer.child.pid, signal.SIGKILL)
        await wait_view(client, lambda view: view["router"]["registry"]["members"] == 2)  # its lease has expired
        await wait_ready_workers(client, "prefill-0", "decode-1")
        assert await complete(client) == (expected, "decode-1")


async def test_a_worker_that_ends_leaves_nothing_behind(tmp_path: Path) -> None:
    async with (
        redis_server(tmp_path / "redis") as server,
        Redis(host=HOST, port=server.port, decode_responses=True) as redis,
    ):
        async with worker_process("decode", MODEL, tmp_path, "--registry", server.url):
            async with asyncio.timeout(20):
                while not (keys := await redis.keys("baton:{default}:worker:*")):
                    await asyncio.sleep(0.05)
            assert len(keys) == 1
            assert await redis.pttl(keys[0]) > 0
        assert await redis.keys("*") == []
