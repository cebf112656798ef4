"""A router that no router can be: it takes no time, and knows every cache and every queue as they are now.

It sends each request where the first token comes first by what it knows, in the engines' own process and under a clock
that passes only while they wait.
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
from benchmarks.routing.worker_counts import WorkerCounts
from benchmarks.routing.workload import Turn, Workload


@dataclass(frozen=True, slots=True)
class _Plan:
    ttft_s: float
    decode: SimulatedEngine
    prefill: SimulatedEngine | None = None
    num_tokens: int = 0  # to compute there


class Oracle:
    """Owns the engines of a topology."""

    def __init__(self, topology: Topology) -> None:
        self.spec = topology.spec
        self.engines = [SimulatedEngine(topology.spec) for _ in topology.roles]
        self._coming: Counter[int] = Counter()  # tokens of prompts that a prefill engine will be asked for, by its id
        self._prefills = [self.engines[i] for i in topology.pools.get("prefill", [])]
        self._decodes = [engine for engine in self.engines if engine not in self._prefills]

    def choose(self, token_ids: list[int]) -> _Plan:
        """The plan with the first token soonest; of equal ones that of the decode worker that did least so far."""
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
        """The request's tokens, from where they are made soonest."""
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
        """Until the prompts that are there are computed, and half a step for the one under way."""
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
    """The figures of the oracle."""
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
