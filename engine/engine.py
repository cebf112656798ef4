"""The engine: requests in, tokens out."""

import logging
import math
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from baton.engine.config import EngineConfig
from baton.engine.errors import EngineError, InvalidRequest, UnsupportedModel
from baton.engine.execution.in_flight_step import InFlightStep, LaunchedStep
from baton.engine.execution.loaded_model import load, zeros
from baton.engine.execution.model_runner import ModelRunner
from baton.engine.experts.group import ExpertGroup
from baton.engine.kv.block_manager import BlockManager
from baton.engine.outputs import EngineStats, ExpertFigures, StepOutput
from baton.engine.parallel.lockstep import Lockstep
from baton.engine.parallel.rank0_model import Rank0Model
from baton.engine.parallel.tensor_parallel import TensorGroup
from baton.engine.request import FinishRule, Request, RequestId
from baton.engine.sampling.sampler import Sampler
from baton.engine.scheduling.schedule import Received, Schedule, ScheduledRequest, StepResult
from baton.engine.scheduling.scheduler import Scheduler
from baton.engine.scheduling.step_rates import StepTimes, StepWork

log = logging.getLogger(__name__)

STEP_TIME_WEIGHT = 0.1  # of the newest step in the running mean
WAITING_PATIENCE = 2.0
FORMING_PATIENCE = 30.0


class Engine:
    """Owns a model, its KV pool and its requests. Not thread-safe: one thread calls everything."""

    def __init__(
        self,
        config: EngineConfig,
        allocate_pool: Callable[[tuple[int, ...], torch.dtype], Tensor] = zeros,
        on_progress: Callable[[float], None] | None = None,
        group: ExpertGroup | None = None,
        tensor: TensorGroup | None = None,
    ) -> None:
        """Loads the checkpoint. Raises UnsupportedModel if it asks for something that is not implemented.

        `allocate_pool` gives the pool's memory, zeroed, since attention multiplies unused slots by zero;
        `on_progress` hears the share of the weights that is loaded. With a `group` this is one of its ranks, and
        returns once the group has formed and this rank has its experts. With `tensor` the other ranks have the rest of
        the model and follow this one, the first; it returns once all have loaded their parts.
        """
        if tensor is not None:
            if group is not None:
                raise UnsupportedModel("expert_parallel and tensor_parallel cannot be used together: leave one at 1")
            tensor.form()
            if tensor.shard.rank:
                raise EngineError(f"rank {tensor.shard.rank} of a tensor-parallel group follows the first, which leads")
        self.config = config
        loaded = load(config, allocate_pool, on_progress, group, tensor)
        self.model_config, self.layout, self.pool = loaded.config, loaded.layout, loaded.pool
        self.kv_parts, self.cores = loaded.kv_parts, loaded.cores
        self.fingerprint = loaded.fingerprint
        self.finish_rule = FinishRule(self.model_config.eos_token_ids, loaded.max_model_len)
        model = Rank0Model(loaded.model, tensor) if tensor is not None else loaded.model
        sampler = Sampler(self.model_config.vocab_size, self.model_config.eos_token_ids)
        self.runner = ModelRunner(model, self.pool, config.block_size, sampler)
        self.blocks = BlockManager(len(self.pool), config.block_size, config.enable_prefix_caching)
        self.scheduler = Scheduler(config, self.blocks, self.finish_rule)
        if group is not None:
            group.form()
        self.group = group
        self.lockstep = Lockstep(group) if group is not None else None
        self.tensor = tensor
        self._step_s = 0.0
        self._collected_at_s = 0.0  # monotonic clock
        self._step_times = StepTimes()
        self._num_generated_tokens = 0
        self._num_prefilled_tokens = 0

    @property
    def has_work(self) -> bool:
        """Whether a step might do something."""
        return len(self.scheduler.waiting) + len(self.scheduler.running) > 0

    @property
    def is_called(self) -> bool:
        """Whether the other ranks of a group wait for a step, though there may be nothing to compute here.

        Also when a rank is gone that has a part of the model: a step raises it.
        """
        if self.tensor is not None and self.tensor.is_broken:
            return True
        return self.lockstep is not None and self.lockstep.is_called

    @property
    def watchdog_multiplier(self) -> float:
        """How many times as long as another turn the present one may take; may be asked on any thread.

        Who waits for other ranks must outlast the one that hangs, and who forms a group may have much to read.
        """
        if self.is_short_of_ranks:
            return math.inf
        if self.lockstep is not None and self.lockstep.is_forming:
            return FORMING_PATIENCE
        waits = self.lockstep or self.tensor
        return WAITING_PATIENCE if waits is not None and waits.is_waiting else 1.0

    @property
    def is_short_of_ranks(self) -> bool:
        """Whether nothing is computed until more ranks come, however late; may be asked on any thread."""
        return self.lockstep is not None and self.lockstep.is_short

    def look_at_ranks(self) -> None:
        """Nothing: a call between two steps, after which `is_called` is looked at."""

    def woken(self, epoch: int, round_number: int) -> None:
        """Another rank of the group has begun this round of agreement; round 0: there is a new epoch."""
        if self.lockstep is not None:
            self.lockstep.woken(epoch, round_number)

    def add(self, request: Request) -> None:
        """Queues a request. Raises InvalidRequest if it could never run, QueueFull if the queue is at its bound."""
        request.sampling.validate(self.model_config.vocab_size)
        vocab_size = self.model_config.vocab_size
        if not all(0 <= token_id < vocab_size for token_id in request.token_ids):
            raise InvalidRequest(f"a prompt token id is out of range; ids go from 0 to {vocab_size - 1}")
        self.scheduler.add(request)

    def schedule(self) -> Schedule:
        """What the next step computes, and which requests got their blocks for somebody to fill; perhaps nothing."""
        return self.scheduler.schedule()

    def run(self, schedule: Schedule) -> StepOutput:
        """Computes a step, in a group together with the other ranks."""
        under_way = self.launch(schedule.requests)
        return self.collect(under_way) if under_way is not None else StepOutput(finished_at_s=time.monotonic())

    @property
    def looks_ahead(self) -> bool:
        """Whether a step may be launched before the tokens of the one before it are known."""
        wanted = self.config.async_scheduling
        is_alone = self.lockstep is None and self.tensor is None
        return is_alone and (self.pool.device.type != "cpu" if wanted is None else wanted)

    def launch(self, scheduled: Sequence[ScheduledRequest], behind: InFlightStep | None = None) -> InFlightStep | None:
        """Begins a step; None if there was not enough memory: the next one is smaller.

        On a GPU it is under way when this returns. In a group it is done: whoever has others waits for them.
        """
        started_at_s, epoch = time.monotonic(), self._epoch
        # Now, before requests move on.
        work, num_prompt_tokens = StepWork.of(scheduled), sum(item.num_new_prompt_tokens for item in scheduled)
        if self.tensor is not None or self.lockstep is not None:
            outcome: LaunchedStep | list[StepResult] = self._compute_together(scheduled)
        elif (launched := self._launch_alone(scheduled, behind)) is not None:
            outcome = launched
        else:
            return None
        return InFlightStep(scheduled, outcome, work, num_prompt_tokens, epoch, started_at_s)

    def collect(self, step: InFlightStep) -> StepOutput:
        """Waits for what a step says, and takes it in. Steps are collected in the order of their launch."""
        outcome = step.outcome
        results = self.runner.collect(outcome) if isinstance(outcome, LaunchedStep) else outcome
        outputs = self.scheduler.update(step.scheduled, results)
        now_s = time.monotonic()
        if not outputs:
            return StepOutput(finished_at_s=now_s)
        self._num_prefilled_tokens += step.num_prompt_tokens
        self._num_generated_tokens += sum(output.sampled is not None for output in outputs)
        if self._epoch == step.epoch:  # else the group formed anew meanwhile, which is no step's time
            step_s = now_s - max(step.started_at_s, self._collected_at_s)
            self._step_s += STEP_TIME_WEIGHT * (step_s - self._step_s)
            self._step_times.add(step.work, step_s)
        self._collected_at_s = now_s
        return StepOutput(outputs, finished_at_s=now_s)

    def schedule_ahead(self, step: InFlightStep) -> list[ScheduledRequest]:
        """What is launched next, if that can be said while a step is under way; nothing otherwise."""
        return self.scheduler.schedule_ahead(step.scheduled)

    @property
    def _epoch(self) -> int:
        return self.lockstep.epoch if self.lockstep is not None else 0

    def _compute_together(self, scheduled: Sequence[ScheduledRequest]) -> list[StepResult]:
        if self.tensor is not None:
            self.tensor.check()
            return self.runner.run(scheduled)
        assert self.lockstep is not None
        num_tokens = sum(item.num_new_tokens for item in scheduled)
        return self.lockstep.run(num_tokens, lambda: self.runner.run(scheduled), self.runner.run_idle) or []

    def _launch_alone(self, scheduled: Sequence[ScheduledRequest], behind: InFlightStep | None) -> LaunchedStep | None:
        num_tokens = sum(item.num_new_tokens for item in scheduled)
        try:
            before = behind.outcome if behind is not None else None
            launched = self.runner.launch(scheduled, before if isinstance(before, LaunchedStep) else None)
        except torch.OutOfMemoryError as error:
            if not self.scheduler.budget.shrink(num_tokens):
                raise
            log.warning("a step of %d tokens did not fit into memory, the next is smaller: %s", num_tokens, error)
        else:
            self.scheduler.budget.recover()
            return launched
        torch.cuda.empty_cache()  # once the error, and with it what the step had, is gone
        return None

    def abort(self, request_id: RequestId) -> bool:
        """Ends a request wherever it stands and frees the blocks that it kept; False if there is none of that id."""
        return self.scheduler.abort(request_id)

    def end_receive(self, request_id: RequestId, received: Received) -> None:
        """Whoever filled a receiving request's blocks is done; see `Scheduler.end_receive`."""
        self.scheduler.end_receive(request_id, received)

    def stats(self) -> EngineStats:
        """Load now, and counters since the start."""
        num_running = len(self.scheduler.running)
        rates = self._step_times.rates()
        return EngineStats(
            num_running=num_running,
            num_waiting=self.scheduler.num_unfinished - num_running,
            num_queued_tokens=self.scheduler.num_queued_tokens,
            num_free_blocks=self.blocks.cache.pool.num_free,
            num_blocks=self.blocks.num_usable,
            step_s=self._step_s,
            num_generated_tokens=self._num_generated_tokens,
            num_prefilled_tokens=self._num_prefilled_tokens,
            num_preemptions=self.scheduler.num_preemptions,
            num_cached_tokens=self.scheduler.num_cached_tokens,
            num_looked_up_tokens=self.scheduler.num_looked_up_tokens,
            prefill_tokens_per_s=rates.prefill_tokens_per_s,
            decode_step_s=rates.decode_step_s,
            decode_sequence_s=rates.decode_sequence_s,
        )

    def expert_figures(self) -> ExpertFigures | None:
        """How its group's experts fare; None without a group."""
        return self.group.figures() if self.group is not None else None

    def close(self) -> None:
        """The other ranks of the group, if there is one, go on without this one; those that follow it end."""
        if self.lockstep is not None:
            self.lockstep.close()
        if self.tensor is not None:
            self.tensor.close()

    def check_integrity(self) -> None:
        """Asserts that every block is accounted for."""
        self.scheduler.check_integrity()
