"""One choice at the workers: choose, send, pass its news on; and again elsewhere if its worker is lost."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

from engine.errors import QueueFull
from protos import common_pb2
from protos.worker_pb2 import GenerateCommand, PeerWorker, RequestDelta
from router.cluster import ClusterSnapshot, Plan, RoutedRequest, WorkerSnapshot
from router.errors import Draining, NoWorker, WorkerLost
from router.generation import Generation
from router.load import LoadEstimate
from router.metrics import RouterMetrics
from router.policy import Policy
from router.worker_pool import WorkerPool
from rpc.sampling import sampling_to_proto
from rpc.status import Unavailable, error_from_code

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FailoverLimits:
    """How hard a request is tried whose worker was lost."""

    attempts: int  # times it is sent again
    timeout_s: float  # wait for a worker, each time


@dataclass(slots=True)
class _Progress:
    """How far one choice is, over all its attempts."""

    token_ids: list[int]  # prompt and output so far
    num_prompt_logprobs: int = 0  # positions passed on
    attempt: int = 0
    excluded: set[str] = field(default_factory=set)  # incarnations that refused it
    routed: RoutedRequest = field(default_factory=lambda: RoutedRequest(1))  # what the policy was told last


class Dispatcher:
    """Sends choices to workers by a policy."""

    def __init__(self, pool: WorkerPool, policy: Policy, limits: FailoverLimits, metrics: RouterMetrics) -> None:
        self._pool = pool
        self._policy = policy
        self._limits = limits
        self._metrics = metrics

    async def run(
        self, generation: Generation, index: int, preferred: str | None = None
    ) -> AsyncGenerator[RequestDelta, None]:
        """News of a choice until its end. `preferred`: id of a decode worker that has the prompt cached.

        Raises NoWorker, Draining, QueueFull, InvalidRequest or what else the worker said. Closing cancels the choice.
        """
        progress = _Progress(list(generation.token_ids))
        while True:
            try:
                plan = await self._choose(generation, progress, preferred)
                async with aclosing(self._attempt(generation, index, plan, progress)) as deltas:
                    async for delta in deltas:
                        yield delta
                return
            except (NoWorker, Draining):
                raise
            except (QueueFull, Unavailable) as error:
                if not isinstance(error, WorkerLost):
                    progress.excluded.add(plan.decode.incarnation)
                progress.attempt += 1
                if progress.attempt > self._limits.attempts:
                    raise
                if isinstance(error, QueueFull) and not self._others(progress):
                    raise
                self._metrics.failovers.inc()
                logger.warning("%s is sent again: %s", generation.request.request_id, error)

    def _others(self, progress: _Progress) -> bool:
        return bool(self._pool.snapshot().without(frozenset(progress.excluded)).decoders())

    async def _choose(self, generation: Generation, progress: _Progress, preferred: str | None) -> Plan:
        """The plan; a request that lost its worker waits for one, a new request does not."""
        deadline_s = asyncio.get_running_loop().time() + (self._limits.timeout_s if progress.attempt else 0.0)
        while True:
            cluster = self._pool.snapshot().without(frozenset(progress.excluded))
            try:
                progress.routed = self._routed(generation, progress, cluster)
                plan = self._policy(progress.routed, cluster)
                break
            except NoWorker:
                left_s = deadline_s - asyncio.get_running_loop().time()
                if left_s <= 0:
                    raise
                await self._pool.wait_change(left_s)
        if preferred is not None and not progress.attempt:
            plan = _pinned(plan, cluster, preferred)
        self._pool.take_turn()
        self._metrics.planned(plan.kind.value)
        logger.debug("%s: %s", generation.request.request_id, plan.reason)
        return plan

    def _routed(self, generation: Generation, progress: _Progress, cluster: ClusterSnapshot) -> RoutedRequest:
        cached = self._pool.cached_tokens(cluster, partial(generation.hashes.extended, progress.token_ids))
        num_final_tokens = len(generation.token_ids) + generation.sampling.max_tokens
        return RoutedRequest(len(progress.token_ids), cached, num_final_tokens)

    async def _attempt(
        self, generation: Generation, index: int, plan: Plan, progress: _Progress
    ) -> AsyncGenerator[RequestDelta, None]:
        """News of one attempt, to the choice's end. Raises WorkerLost, or what the worker said."""
        decode = self._pool.connection(plan.decode.incarnation)
        if decode is None or decode.attach is None:
            raise WorkerLost(f"decode worker {plan.decode.worker_id} is gone")
        attach = decode.attach
        command = make_command(generation, index, plan, progress.token_ids, progress.attempt)
        loads = self._account(command.request_id, plan, progress.routed)
        num_skipped = progress.num_prompt_logprobs
        try:
            mailbox = attach.submit(command)
            while True:
                delta = await mailbox.get()
                if delta.token_ids:
                    for load in loads:
                        load.computed(command.request_id)
                    progress.token_ids.extend(delta.token_ids)
                if delta.prompt_logprobs:  # another attempt reports them from the start again
                    num_old = min(num_skipped, len(delta.prompt_logprobs))
                    num_skipped -= num_old
                    del delta.prompt_logprobs[:num_old]
                    progress.num_prompt_logprobs += len(delta.prompt_logprobs)
                failure = take_failure(delta, plan.decode)
                if delta.token_ids or delta.prompt_logprobs or delta.finish_reason:
                    yield delta  # news that came before a failure count too: they are not generated again
                if failure is not None:
                    raise failure
                if delta.finish_reason:
                    return
        finally:
            attach.abort(command.request_id)
            for load in loads:
                load.remove(command.request_id)

    def _account(self, command_id: str, plan: Plan, routed: RoutedRequest) -> list[LoadEstimate]:
        """Adds the request to the estimates of the workers that will have it, and returns those."""
        loads: list[LoadEstimate] = []
        for worker, num_tokens in (
            (plan.decode, 0 if plan.prefill else routed.missing_tokens(plan.decode)),
            (plan.prefill, routed.missing_tokens(plan.prefill) if plan.prefill else 0),
        ):
            connection = self._pool.connection(worker.incarnation) if worker is not None else None
            if connection is not None:
                connection.load.add(command_id, num_tokens)
                loads.append(connection.load)
        return loads


def make_command(generation: Generation, index: int, plan: Plan, token_ids: list[int], attempt: int) -> GenerateCommand:
    """The command for one attempt at a choice, under an id of its own: the last attempt may not have ended yet."""
    request = generation.request
    return GenerateCommand(
        request_id=f"{request.request_id}-{index}-{attempt}",
        token_ids=token_ids,
        num_prompt_tokens=len(generation.token_ids),
        sampling=sampling_to_proto(generation.choice_sampling(index)),
        cache_salt=request.cache_salt,
        priority=request.priority,
        prefill=_peer(plan.prefill),
        prefix_source=_peer(plan.prefix_source),
    )


def take_failure(delta: RequestDelta, worker: WorkerSnapshot) -> Exception | None:
    """What a delta says of the request's failure, taken out of it; None if it did not fail."""
    failure: Exception | None = None
    if delta.finish_reason == common_pb2.FINISH_REASON_ERROR:
        failure = error_from_code(delta.error.code, delta.error.message)
    elif delta.finish_reason == common_pb2.FINISH_REASON_ABORT:
        failure = Unavailable(f"decode worker {worker.worker_id} gave the request up")
    if failure is not None:
        delta.ClearField("finish_reason")
        delta.ClearField("error")
    return failure


def _peer(worker: WorkerSnapshot | None) -> PeerWorker | None:
    if worker is None:
        return None
    return PeerWorker(worker_id=worker.worker_id, address=worker.address, incarnation=worker.incarnation)


def _pinned(plan: Plan, cluster: ClusterSnapshot, worker_id: str) -> Plan:
    """The plan for a choice whose sibling has the prompt at this decode worker: there, if it is still there."""
    for worker in cluster.decoders():
        if worker.worker_id == worker_id:
            return Plan(worker, None, None, "another choice of the request has the prompt there")
    return plan
