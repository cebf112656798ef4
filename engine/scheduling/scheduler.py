"""Continuous batching: which requests compute how many tokens in the next step.

There is no prefill phase and no decode phase. A request has `num_tokens`, of which `num_computed_tokens` have KV in
this engine. Each step lets the second number catch up with the first, under a token budget (Orca, OSDI 2022; chunked
prefill: Sarathi-Serve, OSDI 2024). Once it has caught up, a token is sampled and there is one more to compute.
"""

from collections.abc import Callable, Sequence

from baton.engine.config import EngineConfig
from baton.engine.errors import EngineError, InvalidRequest, QueueFull
from baton.engine.kv.block_manager import BlockManager
from baton.engine.lora.use import AdapterUse
from baton.engine.outputs import RequestOutput
from baton.engine.request import FinishReason, FinishRule, Request, RequestId, RequestStatus
from baton.engine.scheduling.admission import Admission
from baton.engine.scheduling.backlog import Backlog
from baton.engine.scheduling.lookahead import following
from baton.engine.scheduling.request_limits import check_request
from baton.engine.scheduling.schedule import Received, Schedule, ScheduledRequest, StepResult
from baton.engine.scheduling.step_budget import RemainingBudget, StepBudget
from baton.engine.scheduling.waiting_queue import OrderedRequests
from baton.engine.speculation.speculator import Speculator


class Scheduler:
    """Requests of an engine and the choice of what each step computes."""

    def __init__(
        self,
        config: EngineConfig,
        blocks: BlockManager,
        finish_rule: FinishRule,
        may_sample: Callable[[Request], bool] = lambda _: True,
        speculator: Speculator | None = None,  # adds drafts to steps
        adapters: AdapterUse | None = None,
    ) -> None:
        """may_sample: whether a request's last known token may be computed, so that the next one is sampled."""
        if config.step_tokens <= config.batch_seqs:
            raise ValueError(
                f"max_num_batched_tokens is {config.step_tokens}, but must exceed max_num_seqs "
                f"({config.batch_seqs}); otherwise decodes would starve prompts"
            )
        self.config = config
        self.blocks = blocks
        self.finish_rule = finish_rule
        self._may_sample = may_sample
        self._speculator = speculator
        self._adapters = adapters or AdapterUse()
        self.budget = StepBudget(config.step_tokens)
        self.waiting = OrderedRequests()
        self.running = OrderedRequests()
        self.num_preemptions = 0
        self._requests: dict[RequestId, Request] = {}
        self.backlog = Backlog(self._requests, self.waiting, blocks)
        self._admission = Admission(config, blocks, self.waiting, self.running, may_sample, self._adapters)
        self._num_arrivals = 0
        self._may_admit = False  # whether the next schedule might admit a waiting request

    @property
    def num_unfinished(self) -> int:
        """Requests that have not ended."""
        return sum(request.status is not RequestStatus.FINISHED for request in self._requests.values())

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of admitted requests that were in the prefix cache."""
        return self._admission.num_cached_tokens

    @property
    def num_looked_up_tokens(self) -> int:
        """Tokens of admitted requests."""
        return self._admission.num_looked_up_tokens

    def add(self, request: Request) -> None:
        """Queue a request. Raises InvalidRequest if it could never run, QueueFull if the queue is at its bound."""
        if request.request_id in self._requests or request.request_id in self.blocks.fills:
            raise InvalidRequest(f"request id {request.request_id} is in use")
        check_request(request, self.blocks, self.finish_rule.max_model_len)
        if len(self.waiting) >= self.config.max_num_waiting:
            raise QueueFull(f"{len(self.waiting)} requests are waiting, the maximum; try again later")
        self._num_arrivals += 1
        request.arrival = self._num_arrivals
        request.num_cached_tokens = 0 if request.needs_whole_prompt else self.blocks.num_cached_tokens(request)
        request.num_idle_blocks = self.blocks.num_idle_cached(request) if request.num_cached_tokens else 0
        self._requests[request.request_id] = request
        self._adapters.hold(request)
        self.waiting.add(request)

    def schedule(self) -> Schedule:
        """Choose a step's work: decodes first, then partly computed prompts, then waiting requests."""
        schedule = Schedule()
        remaining = RemainingBudget(self.budget.num_tokens - self._schedule_decodes(schedule))
        while (short := self._schedule_chunks(schedule, remaining)) is not None and not schedule.requests:
            self._make_room(short)
        self._admission.admit(schedule, remaining)
        if self._speculator is not None:
            self._speculator.add_drafts(schedule.requests, min(remaining.num_tokens, remaining.num_prompt_logits))
        schedule.requests.sort(key=_step_order)
        self._may_admit = schedule.leaves_waiting
        return schedule

    def schedule_ahead(self, in_flight: Sequence[ScheduledRequest]) -> list[ScheduledRequest]:
        """Return one more token of each request in a step whose tokens are not known yet, unless it ends by length.

        Returns nothing if the next step might have to do anything else once those tokens are known.
        """
        running = [item for item in in_flight if item.request.status is RequestStatus.RUNNING]
        may_admit = self._may_admit or (self.blocks.groups.has_windows and len(self.waiting) > 0)  # steps free blocks
        if may_admit or len(running) != len(self.running) or not all(item.samples for item in in_flight):
            return []
        items = following(in_flight, self.finish_rule, self.blocks)
        if items and self._speculator is not None and self._speculator.holds_up(running):
            return []
        return items

    def update(self, scheduled: Sequence[ScheduledRequest], results: Sequence[StepResult]) -> list[RequestOutput]:
        """Apply a step's results to its requests: computed tokens, sampled tokens, finish reasons."""
        outputs = []
        for item, result in zip(scheduled, results, strict=True):
            request = item.request
            if request.status is not RequestStatus.RUNNING:  # ended by the previous step, after this one was launched
                continue
            num_accepted = len(result.further)
            end = item.start + item.num_known_tokens + num_accepted
            must_repeat = item.samples and result.sampled is None
            if must_repeat and self.blocks.groups.states is not None:
                outputs += self.restart([item], "the mask of its grammar is late")
                continue
            request.token_ids += item.drafts[:num_accepted]
            self.blocks.advance(request, end - 1 if must_repeat else end)
            request.num_prompt_logprobs += len(result.prompt_logprobs)
            num_known = request.num_tokens
            if result.sampled is not None:
                last = result.further[-1] if result.further else result.sampled
                self._append(request, [last.token_id, *result.forced])
            elif result.embedding is not None:
                self._stop(request, FinishReason.STOP)
            if item.drafts and self._speculator is not None:
                self._speculator.note(item, None if must_repeat else num_accepted)
            outputs.append(result.output(request, forced=request.token_ids[num_known + 1 :]))
        return outputs

    def has(self, request: Request) -> bool:
        """Return whether the request was added and has not ended."""
        return self._requests.get(request.request_id) is request and request.status is not RequestStatus.FINISHED

    def restart(self, scheduled: Sequence[ScheduledRequest], reason: str) -> list[RequestOutput]:
        """Preempt a step's requests, whose states it changed in vain; those with blocks that a peer may read fail."""
        requests = [item.request for item in scheduled]
        for request in (each for each in requests if not each.keep_blocks):
            self._preempt(request)
        return [self.fail(each, QueueFull(f"{reason}; try again")) for each in requests if each.keep_blocks]

    def fail(self, request: Request, error: EngineError) -> RequestOutput:
        """End a request with an error and return its output. Blocks that a peer may read stay held until `abort`."""
        self._stop(request, FinishReason.ERROR)
        return RequestOutput(
            request.request_id, request.num_computed_tokens, finish_reason=request.finish_reason, error=error
        )

    def abort(self, request_id: RequestId) -> bool:
        """End a request in any state; False if the id is unknown. Blocks being filled stay held until `end_receive`."""
        request = self._requests.get(request_id)
        if request is None:
            return False
        request.keep_blocks = False
        self._stop(request, request.finish_reason or FinishReason.ABORT)
        return True

    def end_receive(self, request_id: RequestId, received: Received) -> None:
        """End the remote fill of a request's blocks; called exactly once per receiving request, whatever arrived.

        Tokens whose KV did not arrive are computed here. The request may have ended in the meantime.
        """
        self.blocks.fills.end(request_id)
        request = self._requests.get(request_id)
        if request is None or request.status is not RequestStatus.RECEIVING:
            return
        num_tokens = received.num_tokens
        if received.sampled is None and num_tokens == request.num_tokens:  # the last must be computed here, to sample
            num_tokens = 0 if self.blocks.groups.states is not None else num_tokens - 1  # there is no state before it
        request.status = RequestStatus.RUNNING
        request.receives_kv = False
        request.num_prompt_logprobs += received.num_prompt_logprobs
        self.running.add(request)
        if received.origins:
            self.blocks.set_origins(request, num_tokens, received.origins)
        self.blocks.receive(request, max(num_tokens, request.num_computed_tokens))
        if received.fetched is not None and self.blocks.used is not None:
            self.blocks.used.note_fetched(received.fetched)
        if received.sampled is not None:
            assert self.finish_rule.reason(request, received.sampled.token_id) is None
            request.token_ids.append(received.sampled.token_id)
        if request.receives_whole:
            self.blocks.drop_gaps(request)

    def check_integrity(self) -> None:
        """Assert that every block has exactly its expected holders, and that the queues match the request states."""
        self.blocks.check_integrity(self._requests.values())
        states = (RequestStatus.RUNNING, RequestStatus.RECEIVING)
        self._adapters.check_integrity([each for each in self._requests.values() if each.status in states])
        self.waiting.check_integrity(self._requests.values(), RequestStatus.WAITING)
        self.running.check_integrity(self._requests.values(), RequestStatus.RUNNING)
        assert not any(any(each.block_tables) for each in self.waiting), "a waiting request holds blocks"
        assert all(request.num_computed_tokens < request.num_tokens for request in self.running)

    def _schedule_decodes(self, schedule: Schedule) -> int:
        """Schedule every request that lacks one token, preempting the last in service order while blocks run out.

        Requests that lack several, because their grammar forces tokens, get blocks for them.
        """
        most = min(self.config.batch_seqs, self.budget.num_tokens)
        for request in list(self.running):
            if len(schedule.requests) == most:
                break
            if request.status is not RequestStatus.RUNNING:  # preempted by an earlier one
                continue
            lacks_one = request.num_tokens - request.num_computed_tokens == 1
            is_decode = lacks_one or request.num_computed_tokens >= request.num_prompt_tokens
            if is_decode and self._may_sample(request) and self._grow(request) and lacks_one:
                schedule.requests.append(ScheduledRequest.of(request, 1))
        return len(schedule.requests)

    def _schedule_chunks(self, schedule: Schedule, remaining: RemainingBudget) -> Request | None:
        """Schedule partly computed prompts. Returns one that lacks blocks in groups with a window, if any."""
        short = None
        for request in self.running:
            missing = request.num_tokens - request.num_computed_tokens
            wanted = missing if missing == 1 or self._may_sample(request) else missing - 1
            if missing > 1 and remaining.limit_for(request) > 0 and len(schedule.requests) < self.config.batch_seqs:
                # Tokens that were received or forced may lack blocks, all of them if the mask behind them is late.
                most = self.blocks.until_checkpoint(request, min(wanted, remaining.limit_for(request)))
                covered = self.blocks.cover(request, most)
                if covered > 0:
                    schedule.requests.append(ScheduledRequest.of(request, remaining.take(request, covered)))
                elif self.blocks.is_short(request):
                    short = request
        return short

    def _grow(self, request: Request) -> bool:
        """Allocate blocks for all tokens of the request; False if the request itself had to be preempted."""
        while not self.blocks.grow(request):
            if self._make_room(request) is request:
                return False
        return True

    def _make_room(self, request: Request) -> Request | None:
        """Preempt the last request in service order that does not keep its blocks, which a peer may be reading.

        Returns the preempted request. If only this one runs, and the pinned prefixes leave it too few blocks however
        long it waits, one of them is dropped instead.
        """
        if len(self.running) == 1 and self.blocks.drop_pin_for(request):
            return None
        victim = next((other for other in reversed(self.running) if not other.keep_blocks), request)
        self._preempt(victim)
        return victim

    def _preempt(self, request: Request) -> None:
        """Free a request's blocks and requeue it in its old place; its tokens are recomputed."""
        self.running.remove(request)
        self.blocks.free(request)
        self._adapters.preempt(request)
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        request.status = RequestStatus.WAITING
        self.num_preemptions += 1
        self.waiting.add(request)

    def _append(self, request: Request, token_ids: Sequence[int]) -> None:
        """Append new tokens, up to one that ends the request."""
        for token_id in token_ids:
            reason = self.finish_rule.reason(request, token_id)
            request.token_ids.append(token_id)
            if reason is not None:
                self._stop(request, reason)
                return

    def _stop(self, request: Request, reason: FinishReason) -> None:
        """End a request in any state."""
        self._adapters.end(request)
        if request.status is RequestStatus.WAITING:
            self.waiting.remove(request)
        elif request.status is RequestStatus.RUNNING:
            self.running.remove(request)
        request.finish_reason = reason
        request.status = RequestStatus.FINISHED
        self._may_admit = len(self.waiting) > 0
        if not request.keep_blocks:
            self.blocks.free(request)
            del self._requests[request.request_id]


def _step_order(item: ScheduledRequest) -> tuple[bool, int, int]:
    """Return the place of a request in a step: decodes, then those with drafts by their number, then prompts."""
    return item.num_new_tokens > 1, -len(item.drafts), item.request.adapter_number
