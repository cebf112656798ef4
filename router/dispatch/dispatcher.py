"""Dispatch of one completion: choose workers, send it, stream its output, and fail over if its worker is lost."""

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from baton.engine.errors import QueueFull
from baton.protos.worker_pb2 import GenerateCommand, RequestDelta
from baton.router.dispatch.attempt import AttemptRecord, AttemptTimes, make_command, take_failure
from baton.router.dispatch.first_worker import FirstWorker
from baton.router.dispatch.placement import Placement
from baton.router.dispatch.progress import Holder, Progress, live_completion
from baton.router.dispatch.retries import FailoverLimits, RetryBudget
from baton.router.errors import Draining, HandedOff, ShortOfRanks, WorkerLost
from baton.router.generation import Generation
from baton.router.metrics.metrics import RouterMetrics
from baton.router.policy.cluster import Plan, WorkerSnapshot
from baton.router.policy.policy import Policy
from baton.router.tracing.completion_trace import CompletionTrace
from baton.router.workers.load import LoadEstimate, LoadShare
from baton.router.workers.pool import WorkerPool
from baton.rpc.status import Unavailable

logger = logging.getLogger(__name__)


class Dispatcher:
    """Sends completions to workers by a policy, and retries failed ones."""

    def __init__(
        self,
        pool: WorkerPool,
        policy: Policy,
        limits: FailoverLimits,
        metrics: RouterMetrics,
        first_worker: FirstWorker,
    ) -> None:
        self._pool = pool
        self._limits = limits
        self._metrics = metrics
        self._placement = Placement(pool, policy, metrics, first_worker, limits.timeout_s)
        self._budget = RetryBudget()  # for refusals by busy workers only: retries after a loss add no load
        self._numbers = itertools.count(1)  # numbers of the router's commands; workers' load reports refer to them

    async def run(
        self, generation: Generation, index: int, preferred: str | None = None
    ) -> AsyncGenerator[RequestDelta, None]:
        """Yield the deltas of a completion until it finishes. Closing it cancels the completion.

        `preferred`: id of a decode worker that has just received the prompt's KV. A resumed completion continues after
        the recalled output.

        Raises NoWorker, Draining, QueueFull, InvalidRequest (also for impossible hints), or the worker's error.
        """
        live = self._metrics.live.begin(live_completion(generation, index))
        progress = Progress(list(generation.token_ids), live, generation.request.adapter)
        if (trace := generation.request.context.trace) is not None:
            progress.trace = CompletionTrace(trace, index)
        self._budget.note_request()
        if index > 0:
            progress.move()  # it starts while the first completion runs
        if (start := generation.start(index)) is not None:
            progress.token_ids += start.token_ids
            progress.fingerprint = start.fingerprint
        try:
            while True:
                plan = await self._placement.choose(generation, index, progress, preferred)
                if not progress.pulls(plan):
                    self._release(progress)
                try:
                    async with aclosing(self._attempt(generation, index, plan, progress)) as deltas:
                        async for delta in deltas:
                            yield delta
                    return
                except Exception as error:
                    if progress.trace is not None:
                        progress.trace.failed(error)
                    if isinstance(error, Draining) or not isinstance(error, QueueFull | Unavailable):
                        raise
                    self._metrics.live.left(progress.live)
                    await self._take_failure(progress, plan, error)
                    logger.warning("%s is retried: %s", generation.request.request_id, error)
        finally:
            self._release(progress)
            self._metrics.dispatch_ended(progress.live)
            if num_tokens := len(progress.token_ids) - len(generation.token_ids):
                self._placement.note_output(num_tokens)  # also if it was cancelled: clients stop reading at the end

    async def _take_failure(self, progress: Progress, plan: Plan, error: QueueFull | Unavailable) -> None:
        """Wait until the completion may be retried. Raises the error if it must not be."""
        progress.attempt += 1
        progress.failure = error
        incarnation = plan.decode.incarnation
        if isinstance(error, HandedOff):
            self._pool.note_drain(incarnation)
            progress.move()
            self._metrics.hand_offs.inc()
            return
        if isinstance(error, ShortOfRanks):
            progress.move()
        elif isinstance(error, QueueFull):
            progress.busy.add(incarnation)
            await self._wait_for_room(progress, error)
        else:
            progress.num_failures += 1
            if isinstance(error, WorkerLost):
                progress.losses.note(len(progress.token_ids) + progress.num_prompt_logprobs)
                progress.move()
            else:
                progress.excluded.add(incarnation)
            if progress.num_failures > self._limits.attempts:
                raise progress.losses.last_error(error, progress.num_failures) from error
        self._metrics.failovers.inc()

    def _release(self, progress: Progress) -> None:
        """Have the worker that handed the completion off not wait for a pull of its KV."""
        holder = progress.holder
        if holder is None or holder.is_released:
            return
        holder.is_released = True
        connection = self._pool.connection(holder.incarnation)
        if connection is not None and connection.attach is not None:
            connection.attach.release(holder.command_id)

    async def _wait_for_room(self, progress: Progress, error: QueueFull) -> None:
        """Wait until a refused completion may be retried. Raises the error if it must not be.

        A completion waits until some worker has room if one had accepted it, or the first completion of its request. A
        new request is retried at another worker at once, if the retry budget allows it, or fails.
        """
        has_plan = self._placement.has_plan(progress)
        if progress.moved_s is None:
            progress.num_failures += 1
            if not has_plan or progress.num_failures > self._limits.attempts or not self._budget.take():
                raise error
        elif not has_plan:
            if asyncio.get_running_loop().time() > progress.moved_s + self._limits.timeout_s:
                raise error
            await progress.back_off()

    async def _attempt(
        self, generation: Generation, index: int, plan: Plan, progress: Progress
    ) -> AsyncGenerator[RequestDelta, None]:
        """Yield the deltas of one attempt until the completion finishes. Raises WorkerLost, or the worker's error."""
        decode = self._pool.connection(plan.decode.incarnation)
        if decode is None or decode.attach is None:
            raise WorkerLost(f"decode worker {plan.decode.worker_id} was lost")
        attach = decode.attach
        await attach.room()
        command = self._command(generation, index, plan, progress)
        mailbox = attach.submit(
            command,
            generation.request.patient,
            partial(self._note_generated, generation, progress),
            partial(self._placement.may_move, progress),
        )
        share = LoadShare(command.number, self._load(plan.decode), self._load(plan.prefill))
        share.add(plan, progress.routed)
        times = AttemptTimes(self._metrics.traffic, plan, is_first=not progress.attempt)
        record = AttemptRecord(plan, progress, share, times)
        try:
            while True:
                delta = await mailbox.get()
                if delta.token_ids:
                    self._release(progress)  # the KV was pulled, or computed again
                record.note(delta)
                failure = take_failure(delta, plan.decode)
                if isinstance(failure, HandedOff):
                    self._release(progress)
                    progress.holder = Holder(plan.decode.incarnation, command.request_id)
                if delta.finish_reason and failure is None:
                    self._expect(generation, plan, progress.token_ids)
                if delta.token_ids or delta.prompt_logprobs or delta.finish_reason:
                    yield delta  # also with a failure: retries do not generate this output again
                if failure is not None:
                    raise failure
                if delta.finish_reason:
                    return
        finally:
            attach.abort(command.request_id)
            if mailbox.is_handed_off:
                attach.release(command.request_id)
            record.end()

    def _command(self, generation: Generation, index: int, plan: Plan, progress: Progress) -> GenerateCommand:
        """Return the command of the next attempt, with its number."""
        command = make_command(generation, index, plan, progress.token_ids, progress.attempt)
        command.number = next(self._numbers)
        if progress.holder is not None and progress.pulls(plan):
            command.prefix_source.handed_off = progress.holder.command_id
        if progress.trace is not None:
            progress.trace.sent(command, plan)
        return command

    def _note_generated(self, generation: Generation, progress: Progress, num_tokens: int) -> None:
        """Count tokens as they arrive, also those that the mailbox of a patient request holds back."""
        self._metrics.traffic.generated(num_tokens)
        generation.generated.add(num_tokens)
        self._metrics.live.tokens(progress.live, num_tokens)

    def _expect(self, generation: Generation, plan: Plan, token_ids: list[int]) -> None:
        """Note the blocks that the workers have cached now: the chat's next turn may arrive before they report them."""
        hashes, expected = generation.hashes, self._pool.expected
        num_computed = max(len(token_ids) - 1, len(generation.token_ids))  # the last token has no KV
        computed = token_ids[:num_computed]
        expected.note(plan.decode.incarnation, hashes.extended(computed, plan.decode.block_size))
        if plan.prefill is not None:
            prompt = generation.token_ids
            expected.note(plan.prefill.incarnation, hashes.extended(prompt, plan.prefill.block_size))

    def _load(self, worker: WorkerSnapshot | None) -> LoadEstimate | None:
        """Return the load estimate of a worker; None if there is none, or it was lost."""
        connection = None if worker is None else self._pool.connection(worker.incarnation)
        return None if connection is None else connection.load
