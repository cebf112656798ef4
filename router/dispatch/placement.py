"""Placement of a completion: which workers take its next attempt, by a policy over the pool's current state."""

import asyncio
import logging
from dataclasses import replace
from functools import partial

from baton.router.dispatch.first_worker import FirstWorker
from baton.router.dispatch.progress import Progress
from baton.router.errors import NoWorker, WorkerLost
from baton.router.generation import Generation
from baton.router.metrics.metrics import RouterMetrics
from baton.router.policy.cluster import (
    ClusterSnapshot,
    ImpossiblePlan,
    NoPrefiller,
    Plan,
    RoutedRequest,
    find_candidates,
)
from baton.router.policy.estimates import OutputLength, ReuseShare
from baton.router.policy.policy import Policy
from baton.router.workers.pool import WorkerPool

logger = logging.getLogger(__name__)

MAX_REST_TOKENS = 64  # maximum uncached tokens that a decode worker computes itself after it pulled a prefix


class Placement:
    """Chooses the workers of each attempt, and waits for them where the request may wait."""

    def __init__(
        self,
        pool: WorkerPool,
        policy: Policy,
        metrics: RouterMetrics,
        first_worker: FirstWorker,
        failover_timeout_s: float,
    ) -> None:
        """failover_timeout_s: maximum wait for a worker before each retry."""
        self._pool = pool
        self._policy = policy
        self._metrics = metrics
        self._first_worker = first_worker
        self._failover_timeout_s = failover_timeout_s
        self._reuse = ReuseShare()
        self._output_length = OutputLength()

    def note_output(self, num_tokens: int) -> None:
        """Note the output length of a completion that has ended, for the estimates of the next ones."""
        self._output_length.note(num_tokens)

    def has_plan(self, progress: Progress) -> bool:
        """Return whether its hints and the remaining workers allow another plan now."""
        try:
            find_candidates(progress.routed, self._cluster(progress))
        except (NoWorker, ImpossiblePlan):
            return False
        return True

    def may_move(self, progress: Progress) -> bool:
        """Return whether another worker could continue it now. Cheap if no worker is ready, as for a whole group."""
        return self._pool.has_decoder(progress.fingerprint) and self.has_plan(progress)

    async def choose(self, generation: Generation, index: int, progress: Progress, preferred: str | None) -> Plan:
        """Return the plan. Retries and completions after the first wait for a worker; a new request fails at once.

        Requests for an adapter wait, too: workers that have just joined load it.

        In a deployment that scales to zero, new and handed-off ones wait for the first worker, like those in the queue.
        """
        now_s = asyncio.get_running_loop().time
        deadline_s = now_s() + (self._failover_timeout_s if progress.may_wait or progress.adapter else 0.0)
        while True:
            cluster = self._cluster(progress)
            try:
                progress.routed = self._routed(generation, index, progress, cluster, preferred)
                plan = self._continued(self._policy(progress.routed, cluster), generation, progress)
                break
            except (NoWorker, ImpossiblePlan) as error:
                failed_s = now_s()
                if progress.is_blameless and self._first_worker.is_missing and await self._first_worker.wait(True):
                    deadline_s += now_s() - failed_s
                    progress.hold(now_s() - failed_s)
                    continue
                self._check_may_wait(error, progress, deadline_s - now_s())
                await self._pool.wait_change(deadline_s - now_s())
        if progress.losses.num_lost and not progress.fingerprint:
            plan = replace(plan, prefill_fallbacks=())  # it may end every prefill worker that computes its prompt
        self._note(plan, progress)
        logger.debug("%s: %s", generation.request.request_id, plan.reason)
        return plan

    def _check_may_wait(self, error: NoWorker | ImpossiblePlan, progress: Progress, left_s: float) -> None:
        """Raise the error of a completion that no worker can take unless it waits for one, for `left_s` more."""
        is_impossible = isinstance(error, ImpossiblePlan)
        if is_impossible and not progress.may_wait:
            if isinstance(error, NoPrefiller) and self._pool.expects_prefiller(
                error.fingerprints, progress.routed.num_tokens
            ):
                raise NoWorker(f"{error} now") from error
            raise error  # a lost worker may come back, but an unknown one will not
        if left_s > 0:
            return
        if is_impossible:  # the request is valid: a worker had accepted it
            raise progress.failure or NoWorker(str(error)) from error
        if progress.losses.num_lost or progress.excluded:
            raise WorkerLost(f"{progress.failure}; {error}") from error
        raise error

    def _note(self, plan: Plan, progress: Progress) -> None:
        """Record a plan in the metrics, the trace and the pool's order of equal workers."""
        self._pool.take_turn()
        self._metrics.planned(plan.kind.value)
        self._metrics.live.routed(progress.live, plan)
        if progress.trace is not None:
            progress.trace.planned(plan, progress.routed)
        if not progress.attempt:
            self._metrics.traffic.routed(plan, progress.routed)

    def _cluster(self, progress: Progress) -> ClusterSnapshot:
        """Return the workers that the completion may be sent to."""
        cluster = self._pool.snapshot().having(progress.adapter)
        if progress.attempt or progress.fingerprint:
            cluster = cluster.without(frozenset(progress.excluded | progress.busy), progress.fingerprint)
        return cluster

    def _continued(self, plan: Plan, generation: Generation, progress: Progress) -> Plan:
        """Return the plan. If a worker handed the completion off, the plan pulls the KV from that worker."""
        hashes = partial(generation.hashes.extended, progress.token_ids)
        source = self._pool.source(progress.holder.incarnation, hashes) if progress.holder is not None else None
        if source is None or generation.sampling.prompt_logprobs is not None:
            return plan
        if source.worker.kv_fingerprint != plan.decode.kv_fingerprint:
            return plan
        reason = f"{source.num_tokens} tokens are at {source.worker.worker_id}, which handed the request off"
        cached = progress.routed.cached_tokens
        if plan.prefill is not None and len(progress.token_ids) - source.num_tokens > MAX_REST_TOKENS:
            has_more = source.num_tokens > cached.get(plan.prefill.incarnation, 0)
            return replace(plan, prefix_source=source.worker, reason=reason) if has_more else plan
        has_more = source.num_tokens > cached.get(plan.decode.incarnation, 0)
        return Plan(plan.decode, None, source.worker, reason) if has_more else plan

    def _routed(
        self,
        generation: Generation,
        index: int,
        progress: Progress,
        cluster: ClusterSnapshot,
        preferred: str | None,
    ) -> RoutedRequest:
        num_tokens = len(progress.token_ids)
        found = self._pool.cached_tokens(cluster, partial(generation.hashes.extended, progress.token_ids))
        cached = found.in_pool
        if not progress.attempt and index == 0:
            self._reuse.note(num_tokens, max(cached.values(), default=0))
        for worker in cluster.workers if preferred is not None else ():
            if worker.worker_id == preferred:  # it has the prompt of another completion; its cache event may be late
                cached[worker.incarnation] = num_tokens // worker.block_size * worker.block_size
        num_final_tokens = len(generation.token_ids) + generation.sampling.max_tokens
        return RoutedRequest(
            num_tokens,
            cached,
            num_final_tokens,
            generation.request.context.hints,
            self._reuse.value,
            self._output_length.mean,
            self._output_length.typical,
            found.in_stores,
            progress.adapter,
        )
