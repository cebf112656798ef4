"""Admission of waiting requests: blocks for all their tokens, in service order."""

from collections.abc import Callable

from baton.engine.config import EngineConfig
from baton.engine.kv.block_manager import BlockManager
from baton.engine.lora.use import AdapterUse
from baton.engine.request import Request, RequestStatus
from baton.engine.scheduling.schedule import Schedule, ScheduledRequest
from baton.engine.scheduling.step_budget import RemainingBudget
from baton.engine.scheduling.waiting_queue import OrderedRequests


class Admission:
    """Moves requests from the waiting queue into the batch, or to the remote prefill that fills their blocks."""

    def __init__(
        self,
        config: EngineConfig,
        blocks: BlockManager,
        waiting: OrderedRequests,
        running: OrderedRequests,
        may_sample: Callable[[Request], bool],
        adapters: AdapterUse,
    ) -> None:
        """may_sample: whether a request's last known token may be computed."""
        self.num_cached_tokens = 0  # of admitted requests
        self.num_looked_up_tokens = 0
        self._batch_seqs = config.batch_seqs
        self._blocks = blocks
        self._waiting = waiting
        self._running = running
        self._may_sample = may_sample
        self._adapters = adapters

    def admit(self, schedule: Schedule, remaining: RemainingBudget) -> None:
        """Admit waiting requests in order, each with blocks for all its tokens, so that none starves.

        Remote prefills need no tokens of the step, and join the batch only after their KV has arrived. They pass
        requests for which the step has no tokens left, as long as these still find their blocks, places and adapters
        afterwards. Those that receive only a prefix pass none: the rest of their prompts takes tokens of later steps.
        Requests that cannot be sampled yet, because their grammar is being compiled, get at most half of the batch; the
        rest of them wait and hold up no other request. Those without room for their adapter in the batch hold up only
        others with adapters, and those whose adapter is being read hold up none.
        """
        num_unready: int | None = None  # counted only if a request needs it
        num_passed = num_passed_blocks = 0
        self._adapters.begin_admissions()
        for request in list(self._waiting):
            if num_passed and self._num_places <= num_passed:
                return
            if not self._adapters.may_start(request):
                continue
            is_ready = request.receives_kv or self._may_sample(request)
            if not is_ready:
                if num_unready is None:
                    num_unready = sum(not self._may_sample(each) for each in self._running)
                if num_unready >= self._batch_seqs // 2:
                    schedule.leaves_waiting = True
                    continue
            if not request.receives_kv and len(self._running) >= self._batch_seqs:
                return
            if self._must_wait(request, remaining, num_passed):
                schedule.leaves_waiting = True
                self._adapters.reserve(request)
                num_passed += 1
                num_passed_blocks += self._num_blocks(request)
                continue
            if not self._take_blocks(request, num_passed_blocks):
                return
            self._begin(request, is_ready, schedule, remaining)
            if num_unready is not None:
                num_unready += not is_ready

    @property
    def _num_places(self) -> int:
        """Places of the batch that neither a running request has, nor one whose KV is being received."""
        return self._batch_seqs - len(self._running) - len(self._blocks.fills)

    def _must_wait(self, request: Request, remaining: RemainingBudget, num_passed: int) -> bool:
        """Return whether a request waits for tokens of a later step, or behind those that do."""
        if request.receives_kv:
            return num_passed > 0 and not request.receives_whole
        return num_passed > 0 or remaining.limit_for(request) == 0

    def _num_blocks(self, request: Request) -> int:
        """Return an upper bound on the blocks of each KV group that the request needs."""
        return self._blocks.num_blocks_for(request.num_tokens) + self._blocks.groups.num_state_blocks

    def _take_blocks(self, request: Request, num_passed_blocks: int) -> bool:
        reserve = len(self._running) + num_passed_blocks  # each running request may soon need one more block
        if not self._blocks.take(request, reserve, reads_cache=not request.needs_whole_prompt):
            return False
        if request.num_preemptions == 0:
            request.num_cached_tokens = request.num_computed_tokens
            self.num_cached_tokens += request.num_cached_tokens
            self.num_looked_up_tokens += request.num_tokens
        return True

    def _begin(self, request: Request, is_ready: bool, schedule: Schedule, remaining: RemainingBudget) -> None:
        """Start a request that has its blocks: in the batch, with tokens of this step, or with its remote prefill."""
        self._waiting.remove(request)
        self._adapters.admit(request)
        if request.receives_kv:
            request.status = RequestStatus.RECEIVING
            self._blocks.fills.begin(request)
            schedule.receiving.append(request)
            return
        request.status = RequestStatus.RUNNING
        self._running.add(request)
        missing = request.num_tokens - request.num_computed_tokens
        wanted = self._blocks.until_checkpoint(request, missing if is_ready else missing - 1)
        num_new_tokens = remaining.take(request, wanted)
        if num_new_tokens:
            schedule.requests.append(ScheduledRequest.of(request, num_new_tokens))
