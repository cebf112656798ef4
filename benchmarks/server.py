"""Measured cluster: the real `baton serve` command."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from baton.deployment.local.ports import free_ports

READY_TIMEOUT_S = 180.0


def free_port() -> int:
    """Return a free port outside of the ephemeral range, so that no outgoing connection takes it before it is used."""
    [port] = free_ports("127.0.0.1", 1)
    return port


@asynccontextmanager
async def served(model: str, *flags: str) -> AsyncIterator[str]:
    """Run `baton serve MODEL FLAGS` ("": the bundled model), and yield the URL once all workers are ready."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "baton", "serve", *([model] if model else []), "--port", str(port), *flags,
        stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        await wait_ready(url, process)
        yield url
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def wait_ready(url: str, process: asyncio.subprocess.Process) -> None:
    """Wait until the router or cluster has every worker. Raises RuntimeError if the process ends before."""
    async with (
        asyncio.timeout(READY_TIMEOUT_S),
        httpx.AsyncClient(base_url=url, trust_env=False, verify=False) as client,
    ):
        while not await _all_ready(client):
            if process.returncode is not None:
                raise RuntimeError(f"the server ended with status {process.returncode}")
            await asyncio.sleep(0.1)


async def _all_ready(client: httpx.AsyncClient) -> bool:
    """Whether every worker is attached; /ready requires only one."""
    try:
        workers = (await client.get("/workers")).json()["workers"]
    except httpx.TransportError:
        return False  # it does not listen yet
    return bool(workers) and all(worker["state"] == "ready" for worker in workers)
