"""Real routers, each one process or several that share a port."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from baton.process.child import ChildProcess, ProcessSpec
from baton.process.progress import Failed, Ready

MODEL = Path(__file__).parents[2] / "baton" / "bundled_model"
DEADLINE_S = 60.0


class RouterProcess:
    """A router that has been ready."""

    def __init__(self, child: ChildProcess, ready: Ready, log: Path) -> None:
        self.child = child
        self.url = f"http://{ready.address}"
        self.port = int(ready.address.rsplit(":", 1)[1])
        self.grpc_address = ready.details.get("grpc_address")
        self._log = log

    def log(self) -> str:
        """Return the log of the router and its processes."""
        return self._log.read_text()

    def client(self) -> httpx.AsyncClient:
        """Return a client with one connection, for one request at a time."""
        limits = httpx.Limits(max_connections=1)
        return httpx.AsyncClient(base_url=self.url, timeout=DEADLINE_S, limits=limits, trust_env=False, verify=False)

    async def kill(self) -> None:
        """Kill the router, as a crash does."""
        self.child.kill()
        await self.child.wait()

    async def end(self) -> None:
        """Terminate the router as an operator does, and check its exit status."""
        self.child.terminate()
        status = await self.child.wait()
        assert status == 0, f"the router ended with {status}: {self.log()}"


@asynccontextmanager
async def router_process(
    directory: Path, *flags: str, module: tuple[str, ...] = ("baton.router",)
) -> AsyncIterator[RouterProcess]:
    """Run a `RouterProcess`; on exit it is ended, and its log must be free of tracebacks."""
    log = directory / f"router-{len(list(directory.glob('router-*.log')))}.log"
    argv = (sys.executable, "-m", *module, "--model", str(MODEL), *flags)
    child = await ChildProcess.start(ProcessSpec("router", argv, log))
    try:
        router = RouterProcess(child, await _ready(child, log), log)
        yield router
        if not child.has_ended:
            await router.end()
    finally:
        child.kill()
        await child.wait()
        child.close()
    assert "Traceback" not in log.read_text(), log.read_text()


async def _ready(child: ChildProcess, log: Path) -> Ready:
    async with asyncio.timeout(DEADLINE_S):
        async for progress in child.progress():
            assert not isinstance(progress, Failed), progress
            if isinstance(progress, Ready):
                return progress
    raise AssertionError(f"the router ended before it was ready: {log.read_text()}")


async def wait_router(client: httpx.AsyncClient, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Wait until GET /workers meets the condition, and return it."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition(view := (await client.get("/workers")).json()):
            await asyncio.sleep(0.02)
        return dict(view)


async def wait_workers(client: httpx.AsyncClient, count: int) -> None:
    """Wait until `count` workers are ready."""
    await wait_router(client, lambda view: [each["state"] for each in view["workers"]].count("ready") == count)
