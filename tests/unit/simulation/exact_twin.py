"""The twin's deployment with engines that compute every step: the real scheduler, in asyncio's virtual time.

The router's part is the same real code; only the times of load reports differ a little.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from baton.protos.worker_pb2 import WorkerDescription
from baton.router.policy.cluster import ClusterSnapshot, RoutedRequest, WorkerRole
from baton.router.policy.estimates import ReuseShare
from baton.router.policy.policy import Policy
from baton.router.workers.load import LoadEstimate, LoadShare
from baton.simulation.engine.engine import SimulatedEngine
from baton.simulation.engine.request import PrefilledChunk, SimulatedRequest
from baton.simulation.engine.virtual_time import run_in_virtual_time
from baton.simulation.twin.machine import Machine
from baton.simulation.twin.record import Record
from baton.simulation.twin.trace_request import TraceRequest
from baton.simulation.twin.worker import describe
from baton.worker.reporting import WorkerCounters, load_report

REPORT_INTERVAL_S = 0.05


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """A request of the trace with its tokens."""

    request: TraceRequest
    token_ids: list[int]


class ExactWorker:
    """An engine, and the router's estimate of its load."""

    def __init__(self, worker_id: str, role: WorkerRole, machine: Machine) -> None:
        self.engine = SimulatedEngine(machine.spec)
        self.role = role
        self.estimate = LoadEstimate()
        self.taken: list[int] = []
        self.description: WorkerDescription = describe(worker_id, machine)

    def report(self) -> None:
        taken, self.taken = self.taken, []
        self.estimate.report(load_report(self.engine.load(), WorkerCounters()), taken)

    async def watch(self) -> None:
        while True:
            self.report()
            await asyncio.sleep(REPORT_INTERVAL_S)


class ExactTwin:
    """The workers of a deployment of fixed size."""

    def __init__(self, machine: Machine, roles: Sequence[WorkerRole], policy: Policy) -> None:
        self._machine = machine
        self._policy = policy
        self._reuse = ReuseShare()
        self._num_commands = 0
        numbers = dict.fromkeys(WorkerRole, 0)
        self._workers: dict[str, ExactWorker] = {}
        for role in roles:
            worker_id = f"{role.value}-{numbers[role]}"
            numbers[role] += 1
            self._workers[worker_id] = ExactWorker(worker_id, role, machine)

    async def run(self, requests: Sequence[TokenRequest]) -> list[Record]:
        watching = [asyncio.ensure_future(worker.watch()) for worker in self._workers.values()]
        records = await asyncio.gather(*(self._serve(each) for each in requests))
        for task in watching:
            task.cancel()
        return list(records)

    async def _serve(self, timed: TokenRequest) -> Record:
        request, loop = timed.request, asyncio.get_running_loop()
        record = Record(request.due_s, request.num_prompt_tokens, request.num_output_tokens)
        await asyncio.sleep(request.due_s - loop.time())
        share, number, decode, prefill = self._route(request)
        record.is_remote = prefill is not None
        await asyncio.sleep(self._machine.overhead_s / 2)
        decode.taken.append(number)
        simulated = SimulatedRequest(
            request_id=str(number), token_ids=timed.token_ids, num_output_tokens=request.num_output_tokens
        )

        async def open_prefill(num_cached: int) -> AsyncGenerator[PrefilledChunk, None]:
            assert prefill is not None
            await asyncio.sleep(self._machine.handover_s)
            prefill.taken.append(number)
            async for chunk in prefill.engine.prefill(simulated):
                record.num_cached_tokens = chunk.num_cached_tokens
                yield chunk

        tokens = decode.engine.generate(simulated, open_prefill if prefill is not None else None)
        async for token in tokens:
            if not record.num_received_tokens:
                if prefill is None:
                    record.num_cached_tokens = token.num_cached_tokens
                record.first_s = loop.time() + self._machine.overhead_s / 2
                loop.call_later(self._machine.overhead_s / 2, share.computed)
            record.num_received_tokens += 1
        await asyncio.sleep(self._machine.overhead_s / 2)
        record.last_s = loop.time()
        record.num_ends += 1
        share.remove()
        return record

    def _route(self, request: TraceRequest) -> tuple[LoadShare, int, ExactWorker, ExactWorker | None]:
        hashes, size = request.block_hashes(), self._machine.spec.block_size
        cached = {
            worker_id: size * len(found)
            for worker_id, worker in self._workers.items()
            if (found := worker.engine.core.blocks.cache.match(hashes))
        }
        self._reuse.note(request.num_prompt_tokens, max(cached.values(), default=0))
        num_final = request.num_prompt_tokens + request.num_output_tokens
        routed = RoutedRequest(request.num_prompt_tokens, cached, num_final, reuse_share=self._reuse.value)
        snapshots = [each.estimate.snapshot(each.description, each.role) for each in self._workers.values()]
        plan = self._policy(routed, ClusterSnapshot(tuple(snapshots), self._num_commands))
        self._num_commands += 1
        decode = self._workers[plan.decode.incarnation]
        prefill = self._workers[plan.prefill.incarnation] if plan.prefill is not None else None
        share = LoadShare(self._num_commands, decode.estimate, prefill.estimate if prefill is not None else None)
        share.add(plan, routed)
        return share, self._num_commands, decode, prefill


def run_exact(
    machine: Machine, roles: Sequence[WorkerRole], policy: Policy, requests: Sequence[TokenRequest]
) -> list[Record]:
    """Return every request's record, from engines that compute every step."""

    async def run() -> list[Record]:
        return await ExactTwin(machine, roles, policy).run(requests)

    return run_in_virtual_time(run())
