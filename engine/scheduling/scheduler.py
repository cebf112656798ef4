"""Continuous batching: which requests compute how many tokens in the next step.

There are no phases. A request has `num_tokens`, of which `num_computed_tokens` have their KV here; a step lets the
second number catch up with the first, under a token budget (Orca, OSDI 2022; chunked prefill: Sarathi-Serve, OSDI
2024). When it has caught up, a token is sampled and there is one more to compute.
"""

from collections.abc import Sequence

from baton.engine.config import EngineConfig
from baton.engine.errors import InvalidRequest, QueueFull
from baton.engine.kv.block_manager import BlockManager
from baton.engine.outputs import RequestOutput, SampledToken
from baton.engine.request import FinishReason, FinishRule, Request, RequestId, RequestStatus
from baton.engine.sampling.params import GREEDY_BELOW
from baton.engine.scheduling.schedule import Received, Schedule, ScheduledRequest, StepResult
from baton.engine.scheduling.step_budget import StepBudget, StepRoom
from baton.engine.scheduling.waiting_queue import OrderedRequests


class Scheduler:
    """Owns the requests of an engine."""

    def __init__(self, config: EngineConfig, blocks: BlockManager, finish_rule: FinishRule) -> None:
        if config.step_tokens <= config.batch_seqs:
            raise ValueError(
                f"max_num_batched_tokens is {config.step_tokens}, but must exceed max_num_seqs "
                f"({config.batch_seqs}), or prompts would starve behind decodes"
            )
        self.config = config
        self.blocks = blocks
        self.finish_rule = finish_rule
        self.budget = StepBudget(config.step_tokens)
        self.waiting = OrderedRequests()
        self.running = OrderedRequests()
        self.num_preemptions = 0
        self.num_cached_tokens = 0
        self.num_looked_up_tokens = 0
        self._requests: dict[RequestId, Request] = {}
        self._num_arrivals = 0
        self._may_admit = False  # whether a schedule might admit somebody

    @property
    def num_unfinished(self) -> int:
        """Requests that have not ended."""
        return sum(request.status is not RequestStatus.FINISHED for request in self._requests.values())

    @property
    def num_queued_tokens(self) -> int:
        """Tokens to compute here before every request has caught up.

        What a waiting request will find in the cache is left out, as far as it was there when the request came, and so
        is what others compute for it.
        """
        return sum(map(_tokens_to_compute, self._requests.values()))

    def add(self, request: Request) -> None:
        """Queues a request. Raises InvalidRequest if it could never run, QueueFull if the queue is at its bound."""
        self._check(request)
        if len(self.waiting) >= self.config.max_num_waiting:
            raise QueueFull(f"{len(self.waiting)} requests are waiting, which is the bound; try again later")
        self._num_arrivals += 1
        request.arrival = self._num_arrivals
        request.num_cached_tokens = 0 if self._computes_all(request) else self.blocks.num_cached_tokens(request)
        self._requests[request.request_id] = request
        self.waiting.add(request)

    def schedule(self) -> Schedule:
        """Picks a step's work: decodes, then prompts begun, then requests that wait."""
        schedule = Schedule()
        room = StepRoom(self.budget.num_tokens - self._schedule_decodes(schedule))
        for request in self.running:
            missing = request.num_tokens - request.num_computed_tokens
            if missing > 1 and room.of(request) > 0 and len(schedule.requests) < self.config.batch_seqs:
                # Blocks lack at most for the last token, when that came with a prompt that did not come whole.
                held = len(request.block_table) * self.config.block_size - request.num_computed_tokens
                schedule.requests.append(ScheduledRequest.of(request, room.take(request, min(missing, held))))
        self._admit(schedule, room)
        schedule.requests.sort(key=lambda item: item.num_new_tokens > 1)
        self._may_admit = schedule.leaves_waiting
        return schedule

    def schedule_ahead(self, under_way: Sequence[ScheduledRequest]) -> list[ScheduledRequest]:
        """The step behind one whose tokens are not known yet: one more of each request that surely goes on.

        Nothing, if anything else is to be done next, or may be, when those are known.
        """
        going_on = [item for item in under_way if item.request.status is RequestStatus.RUNNING]
        if self._may_admit or len(going_on) != len(self.running) or not all(item.samples for item in under_way):
            return []
        items = []
        for row, item in enumerate(under_way):
            request = item.request
            if request.status is not RequestStatus.RUNNING or self.finish_rule.ends_by_length(request):
                continue
            if not (_is_plain(request) and self.blocks.grow(request, num_unknown=1)):
                return []
            items.append(ScheduledRequest.behind(item, row))
        return items

    def update(self, scheduled: Sequence[ScheduledRequest], results: Sequence[StepResult]) -> list[RequestOutput]:
        """Takes in a step's results: computed tokens, sampled tokens, ends."""
        outputs = []
        for item, result in zip(scheduled, results, strict=True):
            request = item.request
            if request.status is not RequestStatus.RUNNING:  # it ended with the step before, which was not known yet
                continue
            self.blocks.advance(request, item.start + item.num_new_tokens)
            request.num_prompt_logprobs += len(result.prompt_logprobs)
            if result.sampled is not None:
                self._append(request, result.sampled)
            outputs.append(
                RequestOutput(
                    request_id=request.request_id,
                    num_computed_tokens=request.num_computed_tokens,
                    sampled=result.sampled,
                    prompt_logprobs=result.prompt_logprobs,
                    finish_reason=request.finish_reason,
                )
            )
        return outputs

    def abort(self, request_id: RequestId) -> bool:
        """Ends a request wherever it stands; False if there is none of that id. Blocks being filled stay held by
        whoever fills them.
        """
        request = self._requests.get(request_id)
        if request is None:
            return False
        if request.status is RequestStatus.WAITING:
            self.waiting.remove(request)
        elif request.status is RequestStatus.RUNNING:
            self.running.remove(request)
        request.finish_reason = request.finish_reason or FinishReason.ABORT
        request.keep_blocks = False
        self._finish(request)
        return True

    def end_receive(self, request_id: RequestId, received: Received) -> None:
        """Whoever filled a request's blocks is done with them; called once for each receiving request, whatever came.

        What did not come is computed here. The request may have been aborted in the meantime.
        """
        self.blocks.end_fill(request_id)
        request = self._requests.get(request_id)
        if request is None:
            return
        num_tokens = received.num_tokens if received.sampled else min(received.num_tokens, request.num_tokens - 1)
        request.status = RequestStatus.RUNNING
        request.receives_kv = False
        request.num_prompt_logprobs += received.num_prompt_logprobs
        self.running.add(request)
        self.blocks.advance(request, max(num_tokens, request.num_computed_tokens))
        if received.sampled is not None:
            assert self.finish_rule.reason(request, received.sampled.token_id) is None
            request.token_ids.append(received.sampled.token_id)

    def check_integrity(self) -> None:
        """Asserts that every block is held by exactly those who should hold it, and that the queues are right."""
        self.blocks.check_integrity(self._requests.values())
        for queue, status in ((self.waiting, RequestStatus.WAITING), (self.running, RequestStatus.RUNNING)):
            expected = {id(request) for request in self._requests.values() if request.status is status}
            assert {id(request) for request in queue} == expected, f"the {status.value} queue is wrong"
        assert all(not request.block_table for request in self.waiting), "a waiting request holds blocks"
        assert all(request.num_computed_tokens < request.num_tokens for request in self.running)

    def _check(self, request: Request) -> None:
        if request.request_id in self._requests:
            raise InvalidRequest(f"request id {request.request_id} is in use")
        if not 0 < request.num_prompt_tokens <= request.num_tokens:
            raise InvalidRequest("a prompt needs at least one token")
        max_model_len = self.finish_rule.max_model_len
        if request.num_tokens >= max_model_len:
            raise InvalidRequest(
                f"the prompt has {request.num_tokens} tokens, but must leave room for one more in the context of "
                f"{max_model_len} tokens"
            )
        if request.num_output_tokens >= request.sampling.max_tokens:
            raise InvalidRequest(f"the request has its {request.sampling.max_tokens} output tokens already")
        most = min(request.num_prompt_tokens + request.sampling.max_tokens, max_model_len)
        needed, usable = self.blocks.num_blocks_for(most), self.blocks.num_usable
        if needed > usable:
            raise InvalidRequest(
                f"prompt and output of up to {most} tokens need {needed} blocks of KV, but the pool has {usable}; "
                f"ask for fewer tokens or raise kv_cache_memory_bytes"
            )

    def _schedule_decodes(self, schedule: Schedule) -> int:
        """Schedules every request with one token missing, preempting the last in order while blocks lack."""
        most = min(self.config.batch_seqs, self.budget.num_tokens)
        for request in list(self.running):
            if len(schedule.requests) == most:
                break
            is_running = request.status is RequestStatus.RUNNING
            if is_running and request.num_tokens - request.num_computed_tokens == 1 and self._grow(request):
                schedule.requests.append(ScheduledRequest.of(request, 1))
        return len(schedule.requests)

    def _grow(self, request: Request) -> bool:
        """Gives the request blocks for all its tokens; False if it had to be preempted itself."""
        while not self.blocks.grow(request):
            victim = self._victim(request)
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def _victim(self, request: Request) -> Request:
        """The last in order whose blocks nobody else was told of: others may be reading those that are kept."""
        return next((other for other in reversed(self.running) if not other.keep_blocks), request)

    def _preempt(self, request: Request) -> None:
        """Takes a request's blocks; it waits again, in its old place, and computes its tokens anew."""
        self.running.remove(request)
        self.blocks.free(request)
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        request.status = RequestStatus.WAITING
        self.num_preemptions += 1
        self.waiting.add(request)

    def _admit(self, schedule: Schedule, room: StepRoom) -> None:
        """Admits waiting requests strictly in order, each with blocks for all its tokens, so that none starves.

        Requests that are computed elsewhere are bounded by blocks alone: they take no part in the batch until then.
        """
        while len(self.waiting) > 0:
            request = self.waiting.first
            is_computed_here = not request.receives_kv
            if is_computed_here and (room.of(request) == 0 or len(self.running) >= self.config.batch_seqs):
                schedule.leaves_waiting = len(self.running) < self.config.batch_seqs
                return
            if not self._take_blocks(request):
                return
            self.waiting.remove(request)
            if request.receives_kv:
                request.status = RequestStatus.RECEIVING
                self.blocks.begin_fill(request)
                schedule.receiving.append(request)
            else:
                request.status = RequestStatus.RUNNING
                self.running.add(request)
                num_new_tokens = room.take(request, request.num_tokens - request.num_computed_tokens)
                schedule.requests.append(ScheduledRequest.of(request, num_new_tokens))

    def _take_blocks(self, request: Request) -> bool:
        reserve = len(self.running)  # each of these may soon need one more
        if not self.blocks.take(request, reserve, reads_cache=not self._computes_all(request)):
            return False
        if request.num_preemptions == 0:
            request.num_cached_tokens = request.num_computed_tokens
            self.num_cached_tokens += request.num_cached_tokens
            self.num_looked_up_tokens += request.num_tokens
        return True

    def _computes_all(self, request: Request) -> bool:
        """Whether logprobs are wanted of positions whose KV alone does not give them."""
        reports_prompt = request.sampling.prompt_logprobs is not None
        return reports_prompt and request.num_prompt_logprobs < request.num_prompt_tokens - 1

    def _append(self, request: Request, sampled: SampledToken) -> None:
        """Appends a sampled token, and ends the request if it is the last."""
        request.finish_reason = self.finish_rule.reason(request, sampled.token_id)
        request.token_ids.append(sampled.token_id)
        if request.finish_reason is not None:
            self.running.remove(request)
            self._finish(request)

    def _finish(self, request: Request) -> None:
        request.status = RequestStatus.FINISHED
        self._may_admit = len(self.waiting) > 0
        if not request.keep_blocks:
            self.blocks.free(request)
            del self._requests[request.request_id]


def _is_plain(request: Request) -> bool:
    """Whether a token can be drawn, and need not be told more of, before the host knows the one before it.

    With top-k or top-p it could be, but the host waits for some of their numbers.
    """
    sampling = request.sampling
    is_edited = bool(sampling.logit_bias or sampling.presence_penalty or sampling.frequency_penalty)
    return (
        not (is_edited or sampling.repetition_penalty != 1 or request.num_output_tokens < sampling.min_tokens)
        and (sampling.temperature < GREEDY_BELOW or (sampling.top_k == 0 and sampling.top_p == 1))
        and sampling.logprobs is sampling.prompt_logprobs is None
        and not request.keep_blocks  # others are told what is in them
    )


def _tokens_to_compute(request: Request) -> int:
    if request.status is RequestStatus.FINISHED or request.receives_kv:
        return 0
    expects_cached = request.status is RequestStatus.WAITING and request.num_preemptions == 0
    return request.num_tokens - (request.num_cached_tokens if expects_cached else request.num_computed_tokens)
