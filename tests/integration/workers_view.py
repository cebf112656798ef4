"""A cluster's workers, as its router reports them."""

import asyncio
from typing import Any

import httpx


async def workers(url: str) -> list[dict[str, Any]]:
    """Return the workers from GET /workers."""
    async with httpx.AsyncClient(trust_env=False, verify=False) as client:
        return list((await client.get(f"{url}/workers")).json()["workers"])


async def wait_all_ready(url: str) -> None:
    """Wait until every worker is ready."""
    while not all(worker["state"] == "ready" for worker in await workers(url)):
        await asyncio.sleep(0.05)


async def wait_idle(url: str) -> list[dict[str, Any]]:
    """Wait until no worker has a request and every block of every pool is free; return the workers."""
    while True:
        seen = await workers(url)
        loads = [worker["load"] for worker in seen]
        if all(
            int(load["num_running"]) == int(load["num_waiting"]) == 0
            and int(load["num_free_blocks"]) == int(load["num_blocks"])
            for load in loads
        ):
            return seen
        await asyncio.sleep(0.05)


async def pid_of(name: str, url: str) -> int:
    """Return the process id of a process of the cluster whose router serves at `url`."""
    async with httpx.AsyncClient(base_url=url, trust_env=False, verify=False) as client:
        view = (await client.get("/workers")).json()
    [found] = [each["pid"] for each in view["processes"] if each["name"] == name]
    return int(found)
