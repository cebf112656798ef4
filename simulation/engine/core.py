"""An engine without a model: the real scheduler and block manager, under a stated time a step.

1. A request is added; the scheduler admits it when there are blocks, with what the prefix cache has of it.
2. A step is scheduled: chunks of prompts and one token of each decoding sequence, under the token budget.
3. It takes the time that the spec says, in which nothing is computed.
4. At its end the listeners hear what it did, and the next step begins; without work there is none.

Requests that receive their KV are told to the listeners when they get their blocks; somebody fills these, and then
calls `end_receive`.
"""

import asyncio
from collections.abc import Callable, Sequence

from baton.engine.config import EngineConfig
from baton.engine.errors import EngineEnded, InvalidRequest
from baton.engine.kv.block_hash import BlockHash
from baton.engine.kv.block_manager import BlockManager
from baton.engine.outputs import RequestOutput, SampledToken, StepOutput
from baton.engine.request import BlockId, FinishRule, Request, RequestId, RequestStatus
from baton.engine.scheduling.schedule import Received, Schedule, ScheduledRequest, StepResult
from baton.engine.scheduling.scheduler import Scheduler
from baton.engine.scheduling.step_rates import StepTimes, StepWork
from baton.simulation.engine.counters import EngineCounters, EngineLoad
from baton.simulation.engine.spec import WorkerSpec
from baton.simulation.engine.tokens import PrefixDigest, token_of
from baton.simulation.workers.cache_feed import CacheFeed
from baton.simulation.workers.link import Link

MAX_TOKEN_IDS = 1 << 31
Listener = Callable[[StepOutput], None]


class EngineCore:
    """Owns the requests and the prefix cache of one engine; all calls come from one event loop.

    A step begins when the one before it should have ended, however late its end was noticed: so the engine keeps its
    speed as long as its process has any time left, which `counters.max_lag_s` tells.
    """

    def __init__(self, spec: WorkerSpec, time_scale: float = 1.0) -> None:
        """Each second of the spec takes `time_scale` seconds. Raises ValueError for a spec that cannot be."""
        self.spec = spec.scaled(time_scale)
        self.blocks = BlockManager(spec.num_blocks, spec.block_size, enable_prefix_caching=True)
        self.max_model_len = min(spec.max_model_len, self.blocks.num_usable * spec.block_size)
        self.finish_rule = FinishRule(frozenset(), self.max_model_len)
        self.scheduler = Scheduler(_config(spec), self.blocks, self.finish_rule)
        self.counters = EngineCounters()
        self.step_times = StepTimes()  # what a router is told of the engine's speed, learnt as a real engine learns it
        self.cache_feed = CacheFeed(self.blocks)
        self.link = Link(self.spec)
        self._digests: dict[RequestId, PrefixDigest] = {}
        self._listeners: list[Listener] = []
        self._stepping: Schedule | None = None
        self._to_abort: set[RequestId] = set()  # requests of the step under way
        self._timer: asyncio.Handle | None = None  # of the step under way, or the one about to begin
        self._has_ended = False

    def listen(self, listener: Listener) -> None:
        """`listener` hears what every step did, which requests got blocks to be filled, and that nothing is left."""
        self._listeners.append(listener)

    def add(self, request: Request) -> None:
        """Queues a request. Raises InvalidRequest if it could never run, QueueFull if the queue is at its bound, and
        EngineEnded after `close`.
        """
        if self._has_ended:
            raise EngineEnded("the simulated engine has ended")
        request.sampling.validate(MAX_TOKEN_IDS)
        if request.sampling.logprobs is not None or request.sampling.prompt_logprobs is not None:
            raise InvalidRequest("a simulated worker has no logprobs")
        self.scheduler.add(request)
        self._digests[request.request_id] = PrefixDigest()
        self.counters.requests += 1
        self._wake()

    def abort(self, request_id: RequestId) -> None:
        """Ends a request wherever it stands and frees its blocks; at the end of the step if that computes it."""
        if self._stepping is not None and any(
            item.request.request_id == request_id for item in self._stepping.requests
        ):
            self._to_abort.add(request_id)
        elif self.scheduler.abort(request_id):
            self._digests.pop(request_id, None)
            self._wake()

    def end_receive(self, request: Request, received: Received) -> None:
        """Whoever filled a receiving request's blocks is done; called once for each, even if it was aborted."""
        self.counters.received_tokens += max(0, received.num_tokens - request.num_computed_tokens)
        num_computed = request.num_computed_tokens
        self.scheduler.end_receive(request.request_id, received)
        if request.status is RequestStatus.RUNNING:
            self.cache_feed.note_full_blocks(request, num_computed)
        self._wake()

    def pin(self, hashes: Sequence[BlockHash]) -> tuple[int, list[BlockId]]:
        """Holds the longest cached run of `hashes` until `unpin`; returns the pin's id and the blocks."""
        pinned = self.blocks.pin(hashes)
        self._wake()
        return pinned

    def unpin(self, pin_id: int) -> None:
        """Ends a pin."""
        self.blocks.unpin(pin_id)
        self._wake()

    @property
    def has_work(self) -> bool:
        """Whether a request has not ended."""
        return self.scheduler.num_unfinished > 0

    def load(self) -> EngineLoad:
        """What there is to do now."""
        num_running = len(self.scheduler.running)
        return EngineLoad(
            num_running=num_running,
            num_waiting=self.scheduler.num_unfinished - num_running,
            num_queued_tokens=self.scheduler.num_queued_tokens,
            num_free_blocks=self.blocks.cache.pool.num_free,
            num_blocks=self.blocks.num_usable,
            num_preemptions=self.scheduler.num_preemptions,
            num_cached_tokens=self.scheduler.num_cached_tokens,
            num_looked_up_tokens=self.scheduler.num_looked_up_tokens,
        )

    def close(self) -> None:
        """Steps no more."""
        self._has_ended = True
        if self._timer is not None:
            self._timer.cancel()
        self._listeners.clear()

    def _wake(self) -> None:
        """Begins a step soon, with all that comes until then, unless one is under way or about to begin."""
        if self._timer is None and not self._has_ended:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_soon(lambda: self._begin_step(loop.time()))

    def _begin_step(self, now_s: float) -> None:
        """Schedules a step that begins at `now_s`; none if there is nothing to compute."""
        self._timer = None
        schedule = self.scheduler.schedule()
        if schedule.requests:
            self._stepping = schedule
            ends_at_s = now_s + self._count_step(schedule.requests)
            self._timer = asyncio.get_running_loop().call_at(ends_at_s, self._end_step, schedule, ends_at_s)
        if schedule.receiving or not schedule.requests:
            self._tell(StepOutput(receiving=schedule.receiving, finished_at_s=now_s))

    def _count_step(self, scheduled: Sequence[ScheduledRequest]) -> float:
        """Counts what a step does; returns its seconds."""
        work = StepWork.of(scheduled)
        step_s = self.spec.step_time_s(work.num_sequences, work.num_prompt_tokens, work.num_attended)
        self.step_times.add(work, step_s)
        self.counters.add_step(step_s, sum(item.num_new_prompt_tokens for item in scheduled))
        return step_s

    def _end_step(self, schedule: Schedule, now_s: float) -> None:
        self.counters.max_lag_s = max(self.counters.max_lag_s, asyncio.get_running_loop().time() - now_s)
        self._stepping = None
        computed_before = [item.request.num_computed_tokens for item in schedule.requests]
        results = [self._result(item) for item in schedule.requests]
        outputs = self.scheduler.update(schedule.requests, results)
        for item, num_computed in zip(schedule.requests, computed_before, strict=True):
            self.cache_feed.note_full_blocks(item.request, num_computed)
        self._forget_finished(outputs)
        for request_id in self._to_abort:
            self.scheduler.abort(request_id)
            self._digests.pop(request_id, None)
        self._to_abort.clear()
        self._begin_step(now_s)  # before the listeners: what they do is not the engine's time
        self._tell(StepOutput(outputs, finished_at_s=now_s))
        self.cache_feed.flush()

    def _result(self, item: ScheduledRequest) -> StepResult:
        if not item.samples:
            return StepResult()
        self.counters.generated_tokens += 1
        digest = self._digests[item.request.request_id].extended(item.request.token_ids)
        return StepResult(SampledToken(token_of(digest, self.spec)))

    def _forget_finished(self, outputs: Sequence[RequestOutput]) -> None:
        for output in outputs:
            if output.finish_reason is not None:
                self._digests.pop(output.request_id, None)

    def _tell(self, output: StepOutput) -> None:
        for listener in self._listeners:
            listener(output)


def _config(spec: WorkerSpec) -> EngineConfig:
    return EngineConfig(
        model="simulated",
        device="cpu",
        block_size=spec.block_size,
        max_num_batched_tokens=spec.max_num_batched_tokens,
        max_num_seqs=spec.max_num_seqs,
        max_num_waiting=spec.max_queue_len,
    )
