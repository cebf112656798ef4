"""The engine: requests in, tokens out."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from engine.attention.torch_reference import TorchAttention
from engine.block_manager import BlockManager
from engine.capacity import context_length, num_blocks_in
from engine.config import EngineConfig
from engine.errors import InvalidRequest
from engine.expert_group import ExpertGroup
from engine.fingerprint import compatibility_fingerprint
from engine.finish_rule import FinishRule
from engine.kv_cache import KVCacheLayout
from engine.lockstep import Lockstep
from engine.model_config import read_model_config
from engine.model_runner import ModelRunner
from engine.models import load_model
from engine.outputs import EngineStats, ExpertFigures, StepOutput
from engine.request import Request, RequestId
from engine.sampler import Sampler
from engine.schedule import Received, Schedule, ScheduledRequest, StepResult
from engine.scheduler import Scheduler
from engine.step_rates import StepTimes, StepWork

STEP_TIME_WEIGHT = 0.1  # of the newest step in the running mean


def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Plain memory for a KV pool, in a process that shares it with nobody."""
    return torch.zeros(shape, dtype=dtype)


class Engine:
    """Owns a model, its KV pool and its requests. Not thread-safe: one thread calls everything."""

    def __init__(
        self,
        config: EngineConfig,
        allocate_pool: Callable[[tuple[int, ...], torch.dtype], Tensor] = zeros,
        on_progress: Callable[[float], None] | None = None,
        group: ExpertGroup | None = None,
    ) -> None:
        """Loads the checkpoint. Raises UnsupportedModel if it asks for something that is not implemented.

        `allocate_pool` gives the pool's memory, zeroed, since attention multiplies unused slots by zero;
        `on_progress` hears the share of the weights that is loaded. With a `group` this is one of its ranks, and
        returns once the group has formed and this rank has its experts.
        """
        directory, device = Path(config.model), torch.device(config.device)
        self.config = config
        self.model_config = read_model_config(directory, config.dtype)
        self.layout = KVCacheLayout.of(self.model_config, config.block_size)
        num_blocks = num_blocks_in(config, self.layout)
        self.finish_rule = FinishRule(
            self.model_config.eos_token_ids, context_length(config, self.model_config, num_blocks)
        )
        attention = TorchAttention.for_model(self.model_config, config.block_size)
        served_config = replace(self.model_config, max_model_len=self.finish_rule.max_model_len)
        model = load_model(directory, served_config, device, attention, on_progress, group)
        self.pool = allocate_pool(self.layout.pool_shape(num_blocks), self.layout.dtype).to(device)
        self.fingerprint = compatibility_fingerprint(directory, self.model_config, config.block_size)
        sampler = Sampler(self.model_config.vocab_size, self.model_config.eos_token_ids)
        self.runner = ModelRunner(model, self.pool, config.block_size, sampler)
        self.blocks = BlockManager(num_blocks, config.block_size, config.enable_prefix_caching)
        self.scheduler = Scheduler(config, self.blocks, self.finish_rule)
        if group is not None:
            group.form()
        self.group = group
        self.lockstep = Lockstep(group) if group is not None else None
        self._step_s = 0.0
        self._step_times = StepTimes()
        self._num_generated_tokens = 0
        self._num_prefilled_tokens = 0

    @property
    def has_work(self) -> bool:
        """Whether a step might do something."""
        return len(self.scheduler.waiting) + len(self.scheduler.running) > 0

    @property
    def is_called(self) -> bool:
        """Whether the other ranks of a group wait for a step, though there may be nothing to compute here."""
        return self.lockstep is not None and self.lockstep.is_called

    @property
    def is_waiting(self) -> bool:
        """Whether a step waits for other ranks; may be asked on any thread."""
        return self.lockstep is not None and self.lockstep.is_waiting

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
        started_at_s = time.monotonic()
        # Before the update, which moves the requests on.
        work = StepWork.of(schedule.requests)
        num_prompt_tokens = sum(item.num_new_prompt_tokens for item in schedule.requests)
        outputs = self.scheduler.update(schedule.requests, self._compute(schedule.requests))
        if not outputs:
            return StepOutput(finished_at_s=time.monotonic())
        self._num_prefilled_tokens += num_prompt_tokens
        self._num_generated_tokens += sum(output.sampled is not None for output in outputs)
        step_s = time.monotonic() - started_at_s
        self._step_s += STEP_TIME_WEIGHT * (step_s - self._step_s)
        self._step_times.add(work, step_s)
        return StepOutput(outputs, finished_at_s=time.monotonic())

    def _compute(self, scheduled: list[ScheduledRequest]) -> list[StepResult]:
        if self.lockstep is None:
            return self.runner.run(scheduled)
        num_tokens = sum(item.num_new_tokens for item in scheduled)
        return self.lockstep.run(num_tokens, lambda: self.runner.run(scheduled), self.runner.run_idle) or []

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
        if self.group is None:
            return None
        ranks, tokens = self.group.ranks, self.group.tokens_by_expert().tolist()
        epoch, num_ranks = (ranks.view.epoch, ranks.size) if ranks.is_formed else (0, 0)
        return ExpertFigures(epoch, num_ranks, tokens, self.group.imbalances)

    def close(self) -> None:
        """The other ranks of the group, if there is one, go on without this one."""
        if self.lockstep is not None:
            self.lockstep.close()

    def check_integrity(self) -> None:
        """Asserts that every block is accounted for."""
        self.scheduler.check_integrity()
