"""A real router process that finds its workers in a registry."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from baton.process.child import ChildProcess, ProcessSpec
from baton.process.progress import Failed, Ready

DEADLINE_S = 60.0


@asynccontextmanager
async def registry_router(registry: str, model: Path, directory: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Start a router and yield a client of it; on exit its log must be free of tracebacks."""
    (directory / "routers").mkdir(exist_ok=True)
    log = directory / "routers" / f"{len(list((directory / 'routers').iterdir()))}.log"
    argv = (sys.executable, "-m", "baton.router", "--model", str(model), "--registry", registry, "--port", "0")
    child = await ChildProcess.start(ProcessSpec("router", argv, log))
    try:
        async for progress in child.progress():
            assert not isinstance(progress, Failed), progress
            if isinstance(progress, Ready):
                break
        else:
            raise AssertionError(f"the router ended before it was ready: {log.read_text()}")
        url = f"http://{progress.address}"
        async with httpx.AsyncClient(base_url=url, timeout=DEADLINE_S, trust_env=False, verify=False) as client:
            yield client
    finally:
        child.terminate()
        status = await child.wait()
        child.close()
    assert "Traceback" not in log.read_text(), log.read_text()
    assert status == 0, f"the router ended with {status}: {log.read_text()}"


async def wait_view(client: httpx.AsyncClient, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Wait until GET /workers meets the condition, and return it."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            view: dict[str, Any] = (await client.get("/workers")).json()
            if condition(view):
                return view
            await asyncio.sleep(0.05)


async def wait_ready_workers(client: httpx.AsyncClient, *worker_ids: str) -> None:
    """Wait until exactly these workers are ready."""

    def are_ready(view: dict[str, Any]) -> bool:
        return {each["worker_id"] for each in view["workers"] if each["state"] == "ready"} == set(worker_ids)

    await wait_view(client, are_ready)
