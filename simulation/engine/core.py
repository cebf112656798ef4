"""An engine without a model: the real scheduler and block manager, with a given time per step.

1. A request is added. The scheduler admits it when there are blocks, and reuses its cached prefix.
2. A step is scheduled: chunks of prompts and one token of each decoding sequence, under the token budget.
3. The step takes the time that the spec gives; nothing is computed.
4. At its end the listeners receive its output, and the next step begins if there is work.

Requests that receive their KV are passed to the listeners when they get their blocks. A listener receives the KV and
then calls `end_receive`.
"""

from collections.abc import Callable

from baton.engine.config import EngineConfig
from baton.engine.errors import EngineEnded, InvalidRequest
from baton.engine.kv.block_manager import BlockManager
from baton.engine.outputs import EngineStats, RequestOutput, SampledToken, StepOutput
from baton.engine.request import FinishRule, Request, RequestId, RequestStatus
from baton.engine.scheduling.schedule import Received, ScheduledRequest, StepResult
from baton.engine.scheduling.scheduler import Scheduler
from baton.engine.scheduling.step_rates import StepTimes, StepWork
from baton.simulation.engine.cache_feed import CacheFeed
from baton.simulation.engine.clock import Clock
from baton.simulation.engine.counters import EngineCounters
from baton.simulation.engine.known_rates import KnownRates
from baton.simulation.engine.link import Link
from baton.simulation.engine.spec import WorkerSpec
from baton.simulation.engine.steps import Steps, num_alike
from baton.simulation.engine.tokens import Tokens

MAX_TOKEN_IDS = 1 << 31
Listener = Callable[[StepOutput], None]


class EngineCore:
    """The requests and the prefix cache of one engine; all calls come from one thread.

    A step begins when the previous one should have ended, however late the clock calls. The engine therefore keeps its
    speed as long as its process has CPU time left; `counters.max_lag_s` shows whether it has.
    """

    def __init__(self, spec: WorkerSpec, clock: Clock, tokens: Tokens | None, time_scale: float = 1.0) -> None:
        """Each second of the spec takes `time_scale` seconds. Raises ValueError for an impossible spec.

        Without `tokens` a request's output repeats the last token of its prompt. Equal steps are then one event of the
        clock with one output, so listeners do not get single tokens, and rates are those of the spec.
        """
        self.spec = spec.scaled(time_scale)
        self.blocks = BlockManager(spec.num_blocks, spec.block_size, enable_prefix_caching=True)
        self.max_model_len = min(spec.max_model_len, self.blocks.num_usable * spec.block_size)
        self.finish_rule = FinishRule(frozenset(), self.max_model_len)
        self.config = _config(spec)
        self.scheduler = Scheduler(self.config, self.blocks, self.finish_rule)
        self.counters = EngineCounters()
        self.step_times = StepTimes() if tokens is not None else KnownRates(self.spec)  # for load reports
        self.cache_feed = CacheFeed(self.blocks)
        self.link = Link(self.spec, clock)
        self._clock = clock
        self._tokens = tokens
        self._listeners: list[Listener] = []
        self._steps: Steps | None = None  # in progress
        self._receiving: dict[RequestId, Request] = {}  # including aborted ones, until their receive ends
        self._is_waking = False  # a step is about to begin
        self._to_abort: set[RequestId] = set()  # at the end of the current step
        self._has_ended = False

    def listen(self, listener: Listener) -> None:
        """Call `listener` with each step's output, with requests that are to receive their KV, and when idle."""
        self._listeners.append(listener)

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises InvalidRequest if it could never run, QueueFull if the queue is at its bound, EngineEnded after `close`.
        """
        if self._has_ended:
            raise EngineEnded("the simulated engine has ended")
        request.sampling.validate(MAX_TOKEN_IDS)
        if request.sampling.logprobs is not None or request.sampling.prompt_logprobs is not None:
            raise InvalidRequest("a simulated worker has no logprobs")
        if request.pooling is not None:
            raise InvalidRequest("a simulated worker makes no embeddings")
        self.scheduler.add(request)
        self.counters.requests += 1
        self.wake()

    def abort(self, request_id: RequestId) -> bool:
        """End a request in any state and free its blocks, at the end of the current step if that computes it.

        False if the id is unknown.
        """
        if self._steps is not None and any(item.request.request_id == request_id for item in self._steps.scheduled):
            self._to_abort.add(request_id)
        elif self.scheduler.abort(request_id):
            self._forget(request_id)
        else:
            return False
        self.wake()
        return True

    def end_receive(self, request_id: RequestId, received: Received) -> None:
        """End the receive of a request's KV; called once for each, even if it was aborted."""
        request = self._receiving.pop(request_id)
        self.counters.received_tokens += max(0, received.num_tokens - request.num_computed_tokens)
        num_computed = request.num_computed_tokens
        self.scheduler.end_receive(request_id, received)
        if request.status is RequestStatus.RUNNING:
            self.cache_feed.note_full_blocks(request, num_computed)
        self.wake()

    @property
    def has_work(self) -> bool:
        """Whether there is a request that has not ended."""
        return self.scheduler.num_unfinished > 0

    @property
    def num_generated_tokens(self) -> int:
        """Tokens sampled so far, including those of steps that have ended but are not counted yet."""
        steps = self._steps
        num_over = steps.num_over(self._clock.now_s) * steps.work.num_sequences if steps is not None else 0
        return self.counters.generated_tokens + num_over

    def load(self) -> EngineStats:
        """Return the current load and the counters since the start."""
        num_running = len(self.scheduler.running)
        done, rates = self.counters, self.step_times.rates()
        return EngineStats(
            num_running=num_running,
            num_waiting=self.scheduler.num_unfinished - num_running,
            num_queued_tokens=self.scheduler.num_queued_tokens,
            num_free_blocks=self.blocks.cache.pool.num_free,
            num_blocks=self.blocks.num_usable,
            step_s=done.recent_step_s,
            num_generated_tokens=done.generated_tokens,
            num_prefilled_tokens=done.prefilled_tokens,
            num_preemptions=self.scheduler.num_preemptions,
            num_cached_tokens=self.scheduler.num_cached_tokens,
            num_looked_up_tokens=self.scheduler.num_looked_up_tokens,
            prefill_tokens_per_s=rates.prefill_tokens_per_s,
            decode_step_s=rates.decode_step_s,
            decode_sequence_s=rates.decode_sequence_s,
            num_awaited_blocks=self.scheduler.num_awaited_blocks,
            num_receiving=self.scheduler.num_receiving,
            pins=self.blocks.prefix_pins.figures,
        )

    def close(self) -> None:
        """Stop stepping."""
        self._has_ended = True
        self._listeners.clear()

    def wake(self) -> None:
        """Begin a step soon, with all requests that arrive until then, or as soon as the current step has ended."""
        if self._steps is None:
            if not self._is_waking:
                self._is_waking = True
                self._clock.at(self._clock.now_s, self._wake_up)
        elif self._steps.truncate(self._clock.now_s):
            self._call_at_end(self._steps)

    def _wake_up(self) -> None:
        self._is_waking = False
        self._begin_step(self._clock.now_s)

    def _begin_step(self, now_s: float) -> None:
        """Schedule a step that begins at `now_s`; none if there is nothing to compute."""
        if self._has_ended:
            return
        schedule = self.scheduler.schedule()
        for request in schedule.receiving:
            self._receiving[request.request_id] = request
        if schedule.requests:
            work = StepWork.of(schedule.requests)
            step_s = self.spec.step_time_s(work.num_sequences, work.num_prompt_tokens, work.num_attended)
            is_single = self._tokens is not None
            num_steps = 1 if is_single else num_alike(schedule.requests, self.finish_rule, self.spec.block_size)
            self._steps = Steps(schedule.requests, work, now_s, step_s, num_steps)
            self._call_at_end(self._steps)
        if schedule.receiving or not schedule.requests:
            self._notify(StepOutput(receiving=schedule.receiving, finished_at_s=now_s))

    def _call_at_end(self, steps: Steps) -> None:
        self._clock.at(steps.ends_s, self._end_steps, steps, steps.num_steps)

    def _end_steps(self, steps: Steps, num_steps: int) -> None:
        if self._has_ended or steps is not self._steps or steps.num_steps != num_steps:
            return  # they were truncated
        now_s = steps.ends_s
        self.counters.max_lag_s = max(self.counters.max_lag_s, self._clock.now_s - now_s)
        self._steps = None
        outputs = self._update(steps)
        for request_id in self._to_abort:
            self.scheduler.abort(request_id)
            self._forget(request_id)
        self._to_abort.clear()
        self._begin_step(now_s)  # before the listeners run, whose time must not delay the engine
        self._notify(StepOutput(outputs, finished_at_s=now_s))
        self.cache_feed.flush()

    def _update(self, steps: Steps) -> list[RequestOutput]:
        """Count the steps and pass their results to the scheduler."""
        scheduled = steps.last()
        self.step_times.add(steps.work, steps.step_s)
        num_prompt_tokens = sum(item.num_new_prompt_tokens for item in scheduled)
        self.counters.add_steps(steps.step_s, steps.num_steps, num_prompt_tokens)
        results = [self._result(item) for item in scheduled]
        self.counters.generated_tokens += (steps.num_steps - 1) * len(scheduled)
        outputs = self.scheduler.update(scheduled, results)
        for item, output in zip(scheduled, outputs, strict=True):
            self.cache_feed.note_full_blocks(item.request, item.start)
            if output.finish_reason is not None:
                self._forget(output.request_id)
        return outputs

    def _result(self, item: ScheduledRequest) -> StepResult:
        if not item.samples:
            return StepResult()
        self.counters.generated_tokens += 1
        request = item.request
        token_id = self._tokens.next_token(request) if self._tokens is not None else request.token_ids[-1]
        return StepResult(SampledToken(token_id))

    def _forget(self, request_id: RequestId) -> None:
        if self._tokens is not None:
            self._tokens.forget(request_id)

    def _notify(self, output: StepOutput) -> None:
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
