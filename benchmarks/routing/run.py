"""One run of a workload through a router."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.http_load import post
from benchmarks.routing.client import Client, Refused
from benchmarks.routing.run_result import RunResult, summarise
from benchmarks.routing.system import Served, Setting, System
from benchmarks.routing.topology import Topology
from benchmarks.routing.workload import Turn, Workload

READY_TIMEOUT_S = 90.0
SETTLE_S = 2.0  # for the router to apply load reports and events
NUM_WARM_UPS = 64  # requests until every worker has served some
FAILURES = (OSError, Refused, TimeoutError)


@asynccontextmanager
async def ready_system(
    system: System, setting: Setting, topology: Topology, num_routers: int = 1
) -> AsyncIterator[Served]:
    """Start a system, and yield it when every router has responded."""
    async with system.serve(setting, topology, num_routers) as served:
        client = Client()
        for router in served.routers:
            async with asyncio.timeout(READY_TIMEOUT_S):
                while not await _answers(system, client, router.port):
                    router.check()
                    await asyncio.sleep(0.2)
        await asyncio.sleep(SETTLE_S)
        for number in range(NUM_WARM_UPS):
            payload = post(system.path, system.body([300 + number] * 8, 2))
            await client.ask(served.routers[number % len(served.routers)].port, payload)
        client.close()
        yield served


async def run_workload(system: System, setting: Setting, topology: Topology, workload: Workload) -> RunResult:
    """Start all processes with cold caches, and run the workload."""
    async with ready_system(system, setting, topology) as served:
        before = await served.workers.counts()
        load = _Load(system, served.routers[0].port, workload)
        elapsed_s = await load.run()
        counts = [now.since(start) for now, start in zip(await served.workers.counts(), before, strict=True)]
        return summarise(topology, workload, counts, load.ttft_s, elapsed_s, load.num_failed)


async def _answers(system: System, client: Client, port: int) -> bool:
    try:
        await client.ask(port, post(system.path, system.body([300] * 8, 2)))
    except FAILURES:
        return False
    return True


class _Load:
    """Requests of a run."""

    def __init__(self, system: System, port: int, workload: Workload) -> None:
        self.ttft_s: list[float] = []
        self.num_failed = 0
        self._system = system
        self._port = port
        self._turns = workload.turns
        self._ended = [asyncio.Event() for _ in workload.turns]
        self._client = Client()

    async def run(self) -> float:
        """Run all requests, and return the seconds until the last has ended."""
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        async with asyncio.TaskGroup() as tasks:
            for place, turn in enumerate(self._turns):
                payload = post(self._system.path, self._system.body(turn.token_ids, turn.num_output_tokens))
                await asyncio.sleep(started_s + turn.due_s - loop.time())
                tasks.create_task(self._run(place, turn, payload))
        self._client.close()
        return loop.time() - started_s

    async def _run(self, place: int, turn: Turn, payload: bytes) -> None:
        if turn.after is not None:
            await self._ended[turn.after].wait()
        try:
            self.ttft_s.append((await self._client.ask(self._port, payload)).ttft_s)
        except FAILURES:
            self.num_failed += 1
        self._ended[place].set()
