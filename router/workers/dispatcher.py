"""One choice at the workers: choose, send, pass its news on; and again elsewhere if its worker is lost."""

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial

from baton.engine.errors import QueueFull
from baton.protos.worker_pb2 import RequestDelta
from baton.router.errors import Draining, HandedOff, NoWorker, WorkerLost
from baton.router.generation import Generation
from baton.router.metrics.metrics import RouterMetrics
from baton.router.policy.candidates import ImpossiblePlan, find_candidates
from baton.router.policy.cluster import ClusterSnapshot, Plan, RoutedRequest
from baton.router.policy.expectations import OutputLength, ReuseShare
from baton.router.policy.policy import Policy
from baton.router.workers.attempt import AttemptTimes, RetryBudget, make_command, take_failure
from baton.router.workers.load import LoadShare
from baton.router.workers.pool import WorkerPool
from baton.rpc.backoff import Backoff
from baton.rpc.status import Unavailable

logger = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.05  # between two tries of a choice that was moved to find room
LAST_BACKOFF_S = 0.5
MOST_REST_TOKENS = 64  # that are computed at the decode worker beside a prefix that it pulls


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
    attempt: int = 0  # times that it was sent before
    num_failures: int = 0  # of them
    fingerprint: str = ""  # of who made the output so far: another model must not go on with it
    excluded: set[str] = field(default_factory=set)  # incarnations that failed it
    busy: set[str] = field(default_factory=set)  # incarnations that refused it, as far as they may still be so
    last_holder: str = ""  # incarnation that gave it away last, and has its KV
    moved_s: float | None = None  # event loop's clock when it last lost a worker that had it
    backoff: Backoff = field(default_factory=lambda: Backoff(FIRST_BACKOFF_S, LAST_BACKOFF_S))
    failure: Exception | None = None  # why the last attempt ended
    routed: RoutedRequest = field(default_factory=lambda: RoutedRequest(1))  # what the policy was told last

    def move(self) -> None:
        """The worker that had it has it no more; those that were busy when it came may have room by now."""
        self.moved_s = asyncio.get_running_loop().time()
        self.busy.clear()


class Dispatcher:
    """Sends choices to workers by a policy."""

    def __init__(self, pool: WorkerPool, policy: Policy, limits: FailoverLimits, metrics: RouterMetrics) -> None:
        self._pool = pool
        self._policy = policy
        self._limits = limits
        self._metrics = metrics
        self._reuse = ReuseShare()
        self._answers = OutputLength()
        self._budget = RetryBudget()  # for what busy workers refuse; what lost its worker was somebody's work before
        self._numbers = itertools.count(1)  # of the router's commands; workers' reports say which they include

    async def run(
        self, generation: Generation, index: int, preferred: str | None = None
    ) -> AsyncGenerator[RequestDelta, None]:
        """News of a choice until its end. `preferred`: id of a decode worker that has just got the prompt.

        A resumed choice goes on behind the output that was recalled.

        Raises NoWorker, Draining, QueueFull, InvalidRequest (also for hints that cannot be followed) or what else the
        worker said. Closing cancels the choice.
        """
        progress = _Progress(list(generation.token_ids))
        if (start := generation.start(index)) is not None:
            progress.token_ids += start.token_ids
            progress.fingerprint = start.fingerprint
        try:
            while True:
                plan = await self._choose(generation, index, progress, preferred)
                try:
                    async with aclosing(self._attempt(generation, index, plan, progress)) as deltas:
                        async for delta in deltas:
                            yield delta
                    return
                except Draining:
                    raise
                except (QueueFull, Unavailable) as error:
                    await self._take_failure(progress, plan, error)
                    logger.warning("%s is sent again: %s", generation.request.request_id, error)
        finally:
            if num_tokens := len(progress.token_ids) - len(generation.token_ids):
                self._answers.note(num_tokens)  # however it ended: who reads stops at the last

    async def _take_failure(self, progress: _Progress, plan: Plan, error: QueueFull | Unavailable) -> None:
        """Returns once the choice may be sent again; raises the error if it is not to be."""
        progress.attempt += 1
        progress.failure = error
        incarnation = plan.decode.incarnation
        if isinstance(error, HandedOff):
            self._pool.note_drain(incarnation)
            progress.last_holder = incarnation
            progress.move()
            self._metrics.hand_offs.inc()
            return
        if isinstance(error, QueueFull):
            progress.busy.add(incarnation)
            await self._wait_for_room(progress, error)
        else:
            progress.num_failures += 1
            if isinstance(error, WorkerLost):
                progress.move()
            else:
                progress.excluded.add(incarnation)
            if progress.num_failures > self._limits.attempts:
                raise error
        self._metrics.failovers.inc()

    async def _wait_for_room(self, progress: _Progress, error: QueueFull) -> None:
        """A choice that a worker had before waits until one has room for it; a new one goes to others, or nowhere."""
        has_plan = self._has_plan(progress)
        if progress.moved_s is None:
            progress.num_failures += 1
            if not has_plan or progress.num_failures > self._limits.attempts or not self._budget.take():
                raise error
        elif not has_plan:
            if asyncio.get_running_loop().time() > progress.moved_s + self._limits.timeout_s:
                raise error
            await progress.backoff.wait()
            progress.busy.clear()

    def _has_plan(self, progress: _Progress) -> bool:
        """Whether others than those who refused the choice could take it now, as far as its hints allow them."""
        try:
            find_candidates(progress.routed, self._cluster(progress))
        except (NoWorker, ImpossiblePlan):
            return False
        return True

    def _cluster(self, progress: _Progress) -> ClusterSnapshot:
        """The workers that the choice may go to."""
        cluster = self._pool.snapshot()
        if progress.attempt or progress.fingerprint:
            cluster = cluster.without(frozenset(progress.excluded | progress.busy), progress.fingerprint)
        return cluster

    async def _choose(self, generation: Generation, index: int, progress: _Progress, preferred: str | None) -> Plan:
        """The plan; a request that lost its worker waits for one, a new request does not."""
        deadline_s = asyncio.get_running_loop().time() + (self._limits.timeout_s if progress.attempt else 0.0)
        while True:
            cluster = self._cluster(progress)
            try:
                progress.routed = self._routed(generation, index, progress, cluster, preferred)
                plan = self._continued(self._policy(progress.routed, cluster), generation, progress)
                break
            except (NoWorker, ImpossiblePlan) as error:
                if isinstance(error, ImpossiblePlan) and not progress.attempt:
                    raise  # a worker that was there and went may come back, but not one that never was
                left_s = deadline_s - asyncio.get_running_loop().time()
                if left_s <= 0 and isinstance(error, ImpossiblePlan) and progress.failure is not None:
                    raise progress.failure from error  # the request was in order: its worker failed it
                if left_s <= 0:
                    raise
                await self._pool.wait_change(left_s)
        self._pool.take_turn()
        self._metrics.planned(plan.kind.value)
        if not progress.attempt:
            self._metrics.traffic.routed(plan, progress.routed)
        logger.debug("%s: %s", generation.request.request_id, plan.reason)
        return plan

    def _continued(self, plan: Plan, generation: Generation, progress: _Progress) -> Plan:
        """The plan; for a choice that was given away its KV is pulled from who has it."""
        hashes = partial(generation.hashes.extended, progress.token_ids)
        source = self._pool.source(progress.last_holder, hashes) if progress.last_holder else None
        if source is None or generation.sampling.prompt_logprobs is not None:
            return plan
        if source.worker.fingerprint != plan.decode.fingerprint:
            return plan
        reason = f"{source.num_tokens} tokens are at {source.worker.worker_id}, which gave the request away"
        cached = progress.routed.cached_tokens
        if plan.prefill is not None and len(progress.token_ids) - source.num_tokens > MOST_REST_TOKENS:
            has_more = source.num_tokens > cached.get(plan.prefill.incarnation, 0)
            return replace(plan, prefix_source=source.worker, reason=reason) if has_more else plan
        has_more = source.num_tokens > cached.get(plan.decode.incarnation, 0)
        return Plan(plan.decode, None, source.worker, reason) if has_more else plan

    def _routed(
        self,
        generation: Generation,
        index: int,
        progress: _Progress,
        cluster: ClusterSnapshot,
        preferred: str | None,
    ) -> RoutedRequest:
        num_tokens = len(progress.token_ids)
        cached = self._pool.cached_tokens(cluster, partial(generation.hashes.extended, progress.token_ids))
        if not progress.attempt:
            self._budget.note_request()
        if not progress.attempt and index == 0:
            self._reuse.note(num_tokens, max(cached.values(), default=0))
        for worker in cluster.workers if preferred is not None else ():
            if worker.worker_id == preferred:  # the prompt came there with another choice; its news may be on their way
                cached[worker.incarnation] = num_tokens // worker.block_size * worker.block_size
        num_final_tokens = len(generation.token_ids) + generation.sampling.max_tokens
        return RoutedRequest(
            num_tokens,
            cached,
            num_final_tokens,
            generation.request.context.hints,
            self._reuse.value,
            self._answers.mean,
            self._answers.typical,
        )

    async def _attempt(
        self, generation: Generation, index: int, plan: Plan, progress: _Progress
    ) -> AsyncGenerator[RequestDelta, None]:
        """News of one attempt, to the choice's end. Raises WorkerLost, or what the worker said."""
        decode = self._pool.connection(plan.decode.incarnation)
        if decode is None or decode.attach is None:
            raise WorkerLost(f"decode worker {plan.decode.worker_id} is gone")
        attach = decode.attach
        await attach.room()
        command = make_command(generation, index, plan, progress.token_ids, progress.attempt)
        command.number = next(self._numbers)
        share = self._account(command.number, plan, progress.routed)
        times = AttemptTimes(self._metrics.traffic, plan, is_first=not progress.attempt)
        num_skipped = progress.num_prompt_logprobs
        try:
            mailbox = attach.submit(command, generation.request.patient, self._metrics.traffic.generated)
            while True:
                delta = await mailbox.get()
                if delta.token_ids:
                    share.computed()
                    times.tokens(delta)
                    progress.token_ids.extend(delta.token_ids)
                if delta.token_ids or delta.prompt_logprobs:
                    progress.fingerprint = plan.decode.fingerprint
                if delta.prompt_logprobs:  # another attempt reports them from the start again
                    num_old = min(num_skipped, len(delta.prompt_logprobs))
                    num_skipped -= num_old
                    del delta.prompt_logprobs[:num_old]
                    progress.num_prompt_logprobs += len(delta.prompt_logprobs)
                failure = take_failure(delta, plan.decode)
                if delta.finish_reason and failure is None:
                    self._expect(generation, plan, progress.token_ids)
                if delta.token_ids or delta.prompt_logprobs or delta.finish_reason:
                    yield delta  # news that came before a failure count too: they are not generated again
                if failure is not None:
                    raise failure
                if delta.finish_reason:
                    return
        finally:
            attach.abort(command.request_id)
            share.remove()
            times.ended()

    def _expect(self, generation: Generation, plan: Plan, token_ids: list[int]) -> None:
        """Note what the workers have cached by now: the next turn may come before they report it."""
        hashes, expected = generation.hashes, self._pool.expected
        num_computed = max(len(token_ids) - 1, len(generation.token_ids))  # the last token's KV is not
        computed = token_ids[:num_computed]
        expected.note(plan.decode.incarnation, hashes.extended(computed, plan.decode.block_size))
        if plan.prefill is not None:
            prompt = generation.token_ids
            expected.note(plan.prefill.incarnation, hashes.extended(prompt, plan.prefill.block_size))

    def _account(self, number: int, plan: Plan, routed: RoutedRequest) -> LoadShare:
        """Adds a command to the estimates of the workers that will have it."""
        decode, prefill = self._pool.connection(plan.decode.incarnation), None
        if plan.prefill is not None:
            prefill = self._pool.connection(plan.prefill.incarnation)
        share = LoadShare(number, decode.load if decode else None, prefill.load if prefill else None)
        share.add(plan, routed)
        return share
