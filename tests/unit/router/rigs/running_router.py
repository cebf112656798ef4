"""A router with scripted workers, served over real HTTP and gRPC in the test's own event loop."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson
from openai import AsyncOpenAI

from baton.process.pipes import read_pipe
from baton.router.app import serve
from baton.router.config import RouterConfig
from tests.unit.router.rigs.scripted_worker import ScriptedWorker

MODEL = str(Path(__file__).parents[4] / "baton" / "bundled_model")
DEADLINE_S = 60.0


@dataclass(frozen=True)
class RunningRouter:
    """Addresses of a running router, and the event that ends it."""

    url: str
    grpc_address: str
    stopping: asyncio.Event
    http: httpx.AsyncClient
    openai: AsyncOpenAI


async def read_ready_line(fd: int) -> dict[str, str]:
    """The router's progress message."""
    reader, transport = await read_pipe(fd)
    try:
        line: dict[str, str] = orjson.loads(await asyncio.wait_for(reader.readline(), DEADLINE_S))
        return line
    finally:
        transport.close()


@asynccontextmanager
async def running_router(*workers: ScriptedWorker, **options: object) -> AsyncIterator[RunningRouter]:
    """Start the workers and a router for them, and wait until it is ready if it has a worker."""
    addresses = tuple([await worker.start() for worker in workers])
    read_fd, write_fd = os.pipe()
    config = RouterConfig(
        port=0, grpc_port=0, watch_interval_ms=1, progress_fd=write_fd,
        **{"model": MODEL, "workers": addresses, **options},  # type: ignore[arg-type]  # a test's own choice of options
    )  # fmt: skip
    stopping = asyncio.Event()
    task = asyncio.create_task(serve(config, stopping))
    reading = asyncio.create_task(read_ready_line(read_fd))
    await asyncio.wait((task, reading), return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()  # why it did not start
    ready = await reading
    url = f"http://{ready['address']}"
    try:
        async with (
            httpx.AsyncClient(base_url=url, timeout=DEADLINE_S, trust_env=False, verify=False) as http,
            AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=http_client()) as openai,
        ):
            if workers:
                await wait_workers(http, len(workers))
            yield RunningRouter(url, ready["grpc_address"], stopping, http, openai)
    finally:
        stopping.set()
        await asyncio.wait_for(task, DEADLINE_S)
        os.close(write_fd)
        for worker in workers:
            await worker.stop()


def http_client() -> httpx.AsyncClient:
    """Return a client that ignores the machine's proxies, and reads no certificates, which takes 20 ms."""
    return httpx.AsyncClient(timeout=DEADLINE_S, trust_env=False, verify=False)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds. Raises TimeoutError."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            if condition():
                return
            await asyncio.sleep(0.002)


async def worker_states(http: httpx.AsyncClient) -> dict[str, dict[str, Any]]:
    """Return the router's view of its workers, by address."""
    return {worker["address"]: worker for worker in (await http.get("/workers")).json()["workers"]}


async def wait_workers(http: httpx.AsyncClient, count: int, state: str | None = None) -> None:
    """Wait until this many workers are in the state (None: connected)."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            states = [worker["state"] for worker in (await worker_states(http)).values()]
            if (states.count(state) if state else len(states) - states.count("connecting")) == count:
                return
            await asyncio.sleep(0.005)


async def wait_cached(http: httpx.AsyncClient, worker: ScriptedWorker, count: int) -> None:
    """Wait until the router knows this many cached blocks of a worker."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            if (await worker_states(http))[worker.address].get("cached_blocks", 0) >= count:
                return
            await asyncio.sleep(0.005)
