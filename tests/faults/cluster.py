"""A cluster of real processes under faults: routers, workers, proxies and network."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from tests.faults.machines import Machine
from tests.faults.node import BatonNode, Node
from tests.faults.proxy import Proxy
from tests.faults.resumed import ResumedExchange, ResumingClient, resuming_clients
from tests.faults.workload import Answer, Exchange

WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """The processes, and the proxies and machines between them."""

    routers: Sequence[BatonNode]
    workers: Sequence[BatonNode]
    proxies: Mapping[str, Proxy] = field(default_factory=dict)  # by worker or router
    machines: Mapping[str, Machine] = field(default_factory=dict)  # by worker
    stores: Sequence[Node] = ()  # the registry's storage
    entrances: Sequence[str] = ()  # the routers' addresses for clients that resume
    clients: Sequence[httpx.AsyncClient] = ()  # one per router
    resuming: Sequence[ResumingClient] = ()  # one per entrance

    @property
    def nodes(self) -> Sequence[Node]:
        """All processes, in the order of their start."""
        return (*self.stores, *self.workers, *self.routers)

    def of_role(self, role: str) -> list[Node]:
        """Return the processes of a role."""
        return [node for node in self.nodes if node.role == role]

    async def run(self, exchange: Exchange) -> Answer:
        """Run an exchange and return its response."""
        if isinstance(exchange, ResumedExchange):
            return await exchange.run_resuming(self.resuming)
        return await exchange.run(self.clients)

    async def wait_whole(self) -> set[str]:
        """Wait until every process runs and every router has every worker ready; start those that have ended.

        Returns the names of the processes that it started. Raises AssertionError if the wait times out.
        """
        return await self._wait(self._is_whole)

    async def wait_clean(self) -> set[str]:
        """Wait as `wait_whole`, and until no worker has a request or a held block, also as the routers report it."""
        return await self._wait(lambda view: all(_is_clean(each) for each in view))

    def missing(self) -> list[str]:
        """Return the names of processes that do not run."""
        return [node.name for node in self.nodes if not node.is_running]

    async def start_missing(self) -> None:
        """Start every process that has ended, the registry's storage first."""
        for store in self.stores:
            if not store.is_running:
                await store.start()
        await asyncio.gather(*(node.start() for node in self.nodes if not node.is_running))

    def _is_whole(self, view: list[dict[str, Any]]) -> bool:
        return len(view) == len(self.workers) and all(each["state"] == "ready" for each in view)

    async def _wait(self, condition: Callable[[list[dict[str, Any]]], bool]) -> set[str]:
        started: set[str] = set()
        views: list[list[dict[str, Any]] | None] = []
        try:
            async with asyncio.timeout(WAIT_S):
                while not views or not all(view is not None and condition(view) for view in views):
                    if views:
                        await asyncio.sleep(0.02)
                    started.update(self.missing())
                    await self.start_missing()
                    views = [await _view(client) for client in self.clients]
        except TimeoutError:
            raise AssertionError(f"the cluster does not come to rest: {views}") from None
        return started


async def _view(client: httpx.AsyncClient) -> list[dict[str, Any]] | None:
    """Return the workers as a router reports them; None if it is restarting."""
    try:
        return list((await client.get("/workers")).json()["workers"])
    except httpx.TransportError:
        return None


def _is_clean(worker: dict[str, Any]) -> bool:
    load = worker.get("load")
    if load is None:
        return False
    is_idle = int(load["num_running"]) == int(load["num_waiting"]) == int(load["num_queued_tokens"]) == 0
    return is_idle and int(load["num_free_blocks"]) == int(load["num_blocks"]) and worker["inflight"] == 0


@asynccontextmanager
async def running(made: Cluster) -> AsyncIterator[Cluster]:
    """Start all processes of a cluster; end them on exit, whatever their state."""
    async with AsyncExitStack() as stack:
        for node in made.nodes:
            stack.push_async_callback(node.end)
        clients = [
            await stack.enter_async_context(
                httpx.AsyncClient(base_url=f"http://{router.address}", timeout=WAIT_S, trust_env=False, verify=False)
            )
            for router in made.routers
        ]
        resuming = await stack.enter_async_context(resuming_clients(made.entrances))
        whole = replace(made, clients=clients, resuming=resuming)
        await whole.wait_whole()
        yield whole
