"""A router in the test's process that sends requests where a move wants them."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
import pytest

from baton.router import served_model
from baton.router.errors import NoWorker
from baton.router.policy.cluster import ClusterSnapshot, Plan, RoutedRequest, WorkerRole
from tests.integration.matrix.exchange import Exchange
from tests.integration.matrix.feature import Feature
from tests.unit.router.rigs.running_router import running_router, wait_workers

DEADLINE_S = 240.0
POLL_S = 0.002


@dataclass(frozen=True, slots=True)
class Route:
    """Ids of the workers that take a request: of each list the first one that takes requests."""

    decode: tuple[str, ...]
    prefill: tuple[str, ...] = ()
    source: str | None = None  # from which the KV of a prefix is pulled
    in_turn: bool = False  # the decode workers take turns


class DirectedPolicy:
    """A policy that follows a route."""

    def __init__(self, route: Route) -> None:
        self.route = route

    def __call__(self, request: RoutedRequest, cluster: ClusterSnapshot) -> Plan:
        """Return the plan. Raises NoWorker if no decode worker of the route takes requests."""
        workers = {each.worker_id: each for each in cluster.workers}
        route = self.route
        decoders = [workers[name] for name in route.decode if name in workers]
        decoders = [each for each in decoders if each.role is not WorkerRole.PREFILL]
        if not decoders:
            raise NoWorker(f"none of {', '.join(route.decode)} takes requests")
        decode = decoders[cluster.turn % len(decoders)] if route.in_turn else decoders[0]
        prefillers = [workers[name] for name in route.prefill if name in workers]
        source = workers[route.source] if route.source is not None else None
        if not prefillers:
            return Plan(decode, None, source, "directed")
        return Plan(decode, prefillers[0], source, "directed", tuple(prefillers[1:]))


class DirectedRouter:
    """A running router."""

    def __init__(self, http: httpx.AsyncClient, policy: DirectedPolicy) -> None:
        self._http = http
        self._policy = policy

    def direct(self, route: Route) -> None:
        """Send further requests along another route."""
        self._policy.route = route

    @asynccontextmanager
    async def in_flight(self, features: Iterable[Feature], salt: str) -> AsyncIterator[Sequence[Exchange]]:
        """Send requests, and wait for their ends on exit."""
        exchanges = [Exchange(self._http, each, f"{salt} {place}") for place, each in enumerate(features)]
        async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
            for each in exchanges:
                tasks.create_task(each.run())
            yield exchanges

    async def run(self, features: Iterable[Feature], salt: str) -> Sequence[Exchange]:
        """Send requests, all at once, and return them once they have ended."""
        async with self.in_flight(features, salt) as exchanges:
            pass
        return exchanges

    async def counter(self, name: str) -> int:
        """Return a counter: baton:NAME_total."""
        page = (await self._http.get("/metrics")).text
        return int(sum(map(float, re.findall(rf"^baton:{name}_total{{[^}}]*}} (\S+)$", page, re.MULTILINE))))

    async def wait_workers(self, count: int) -> None:
        """Wait until this many workers take requests."""
        await wait_workers(self._http, count, "ready")

    async def wait_model(self, name: str) -> None:
        """Wait until the router serves a model or an adapter of this name."""
        async with asyncio.timeout(DEADLINE_S):
            while name not in [each["id"] for each in (await self._http.get("/v1/models")).json()["data"]]:
                await asyncio.sleep(POLL_S)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds. Raises TimeoutError."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(POLL_S)


@asynccontextmanager
async def directed_router(addresses: Sequence[str], route: Route, **options: object) -> AsyncIterator[DirectedRouter]:
    """Run a router of the workers at these addresses."""
    policy = DirectedPolicy(route)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(served_model, "make_policy", lambda *_: policy)
        async with running_router(workers=tuple(addresses), **options) as running:
            router = DirectedRouter(running.http, policy)
            await router.wait_workers(len(addresses))
            yield router
