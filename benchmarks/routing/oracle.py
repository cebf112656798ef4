"""Ideal router: it takes no time and knows the current state of every cache and queue.

It sends each request to the worker with the lowest predicted TTFT. It runs in the engines' process on a virtual clock.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass

from baton.engine.kv.block_hash import BlockHash, hash_blocks
from baton.engine.request import Request
from baton.simulation.engine.engine import SimulatedEngine
from baton.simulation.engine.request import PrefilledChunk, SimulatedRequest
from baton.simulation.engine.virtual_time import run_in_virtual_time
from benchmarks.routing.run_result import RunResult, summarise
from benchmarks.routing.topology import Topology
from benchmarks.routing.workers.counts import WorkerCounts
from benchmarks.routing.workload import Turn, Workload


@dataclass(frozen=True, slots=True)
class _Plan:
    ttft_s: float
    decode: SimulatedEngine
    prefill: SimulatedEngine | None = None
    num_tokens: int = 0  # to prefill there


class Oracle:
    """Owner of the engines of a topology."""

    def __init__(self, topology: Topology) -> None:
        self.spec = topology.spec
        self.engines = [SimulatedEngine(topology.spec) for _ in topology.roles]
        self._coming: Counter[int] = Counter()  # prompt tokens planned, not yet sent, by prefill engine
        self._prefills = [self.engines[i] for i in topology.pools.get("prefill", [])]
        self._decodes = [engine for engine in self.engines if engine not in self._prefills]

    def choose(self, token_ids: list[int]) -> _Plan:
        """Return the plan with the lowest TTFT; ties go to the decode worker with the least work so far."""
        hashes = hash_blocks(token_ids, self.spec.block_size)
        waits_s = {id(engine): self._wait_s(engine) for engine in self.engines}
        missing = {id(engine): len(token_ids) - self._num_cached(engine, hashes) for engine in self.engines}
        plans = []
        for decode in self._decodes:
            join_s = self.spec.sequence_s * len(decode.core.scheduler.running)
            plans.append(_Plan(waits_s[id(decode)] + self._prefill_s(missing[id(decode)]) + join_s, decode))
            plans += [
                _Plan(waits_s[id(prefill)] + self._prefill_s(there) + join_s, decode, prefill, there)
                for prefill in self._prefills
                for there in (missing[id(prefill)],)
            ]
        return min(plans, key=lambda plan: (round(plan.ttft_s, 3), plan.decode.counters.busy_s))

    def stream(self, request: SimulatedRequest) -> AsyncIterator[object]:
        """Stream the request's tokens from the chosen worker."""
        plan = self.choose(request.token_ids)
        prefill = plan.prefill
        if prefill is None:
            return plan.decode.generate(request)
        self._coming[id(prefill)] += plan.num_tokens

        def open_prefill(num_cached: int) -> AsyncGenerator[PrefilledChunk, None]:
            self._coming[id(prefill)] -= plan.num_tokens
            return prefill.prefill(request)

        return plan.decode.generate(request, open_prefill)

    def _num_cached(self, engine: SimulatedEngine, hashes: list[BlockHash]) -> int:
        return len(engine.core.blocks.cache.match(hashes)) * self.spec.block_size

    def _prefill_s(self, num_tokens: int) -> float:
        return num_tokens / self.spec.prefill_tokens_per_s

    def _wait_s(self, engine: SimulatedEngine) -> float:
        """Return the seconds to prefill the queue, plus half a step for the running one."""
        scheduler = engine.core.scheduler
        left = [request.num_tokens - request.num_computed_tokens for request in scheduler.running]
        left += [self._missing(engine, request) for request in scheduler.waiting]
        left.append(self._coming[id(engine)])
        return self._prefill_s(sum(left)) + (self.spec.step_s / 2 if sum(left) else 0.0)

    def _missing(self, engine: SimulatedEngine, request: Request) -> int:
        if request.receives_kv:
            return 0
        return request.num_tokens - self._num_cached(engine, hash_blocks(request.token_ids, self.spec.block_size))


def run_oracle(topology: Topology, workload: Workload) -> RunResult:
    """Run the workload through the oracle."""
    return run_in_virtual_time(_run(topology, workload))


async def _run(topology: Topology, workload: Workload) -> RunResult:
    loop, oracle = asyncio.get_running_loop(), Oracle(topology)
    ended = [asyncio.Event() for _ in workload.turns]
    ttft_s: list[float] = []

    async def run(place: int, turn: Turn) -> None:
        await asyncio.sleep(turn.due_s)
        if turn.after is not None:
            await ended[turn.after].wait()
        sent_s, first_s = loop.time(), 0.0
        request = SimulatedRequest(
            request_id=str(place), token_ids=turn.token_ids, num_output_tokens=turn.num_output_tokens
        )
        async for _ in oracle.stream(request):
            first_s = first_s or loop.time()
        ttft_s.append(first_s - sent_s)
        ended[place].set()

    async with asyncio.TaskGroup() as tasks:
        for place, turn in enumerate(workload.turns):
            tasks.create_task(run(place, turn))
    counts = [WorkerCounts.of(engine.counters) for engine in oracle.engines]
    return summarise(topology, workload, counts, ttft_s, loop.time())
