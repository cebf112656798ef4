"""A cluster of real processes under faults: routers, and workers behind a network that can go bad."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx

from deployment.ports import free_ports
from tests.faults.node import Node
from tests.faults.proxy import Proxy

MODEL = str(files("baton") / "bundled_model")
WORKER_FLAGS = ("--dtype=float32", "--num-threads=1", "--kv-cache-memory-bytes=64MiB", "--max-num-batched-tokens=256")
WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """Owns the processes and what is between them."""

    routers: Sequence[Node]
    workers: Sequence[Node]
    proxies: dict[str, Proxy]  # by worker
    clients: Sequence[httpx.AsyncClient]  # of each router

    def of_role(self, role: str) -> list[Node]:
        """Its workers of a role, or its routers."""
        return [node for node in (*self.routers, *self.workers) if node.role == role]

    async def view(self, client: httpx.AsyncClient) -> list[dict[str, Any]]:
        """The workers as a router has them."""
        return list((await client.get("/workers")).json()["workers"])

    async def wait_whole(self) -> None:
        """Returns once every process runs and every router has every worker ready."""
        await asyncio.gather(*(node.start() for node in (*self.routers, *self.workers) if not node.is_running))
        for client in self.clients:
            await _until(client, lambda view: all(each["state"] == "ready" for each in view))

    async def wait_clean(self) -> None:
        """Returns once no worker has a request and every block is free, and no router thinks otherwise.

        Raises AssertionError if that never comes.
        """
        for client in self.clients:
            await _until(client, lambda view: all(_is_clean(each) for each in view))

    def missing(self) -> list[str]:
        """Names of processes that do not run."""
        return [node.name for node in (*self.routers, *self.workers) if not node.is_running]


def _is_clean(worker: dict[str, Any]) -> bool:
    load = worker.get("load")
    if load is None:
        return False
    is_idle = int(load["num_running"]) == int(load["num_waiting"]) == int(load["num_queued_tokens"]) == 0
    return is_idle and int(load["num_free_blocks"]) == int(load["num_blocks"]) and worker["inflight"] == 0


async def _until(client: httpx.AsyncClient, condition: Callable[[list[dict[str, Any]]], bool]) -> None:
    view: list[dict[str, Any]] | None = None
    try:
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    view = (await client.get("/workers")).json()["workers"]
                except httpx.TransportError:
                    view = None  # a router that starts again
                if view is not None and condition(view):
                    return
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"the cluster does not come to rest: {view}") from None


@asynccontextmanager
async def cluster(
    directory: Path, num_prefill: int = 2, num_decode: int = 2, num_routers: int = 1, drain_timeout_s: float = 0.3
) -> AsyncIterator[Cluster]:
    """Starts everything, and ends it in whatever state it is."""
    names = [f"prefill-{n}" for n in range(num_prefill)] + [f"decode-{n}" for n in range(num_decode)]
    ports = free_ports("127.0.0.1", len(names) + num_routers)
    async with AsyncExitStack() as stack:
        workers, proxies = [], {}
        for name, port in zip(names, ports, strict=False):
            role, _ = name.split("-")
            drain = f"--drain-timeout-s={drain_timeout_s}"
            own = (f"--role={role}", f"--worker-id={name}", f"--model={MODEL}", drain)
            workers.append(Node(role, name, port, directory, (*own, *WORKER_FLAGS)))
            proxies[name] = Proxy("127.0.0.1", port)
            await proxies[name].start()
            stack.push_async_callback(proxies[name].close)
        addresses = ",".join(proxy.address for proxy in proxies.values())
        settings = ("--local-prefill-below=64", "--drain-timeout-s=30", "--watch-interval-ms=10")
        flags = (f"--model={MODEL}", f"--workers={addresses}", *settings)
        routers = [Node("router", f"router-{n}", port, directory, flags) for n, port in enumerate(ports[len(names) :])]
        for node in (*routers, *workers):
            stack.push_async_callback(node.end)
        clients = [
            await stack.enter_async_context(
                httpx.AsyncClient(base_url=f"http://{router.address}", timeout=WAIT_S, trust_env=False)
            )
            for router in routers
        ]
        made = Cluster(routers, workers, proxies, clients)
        await made.wait_whole()
        yield made
