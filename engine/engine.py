"""The engine: scheduler, KV blocks and model runner behind one single-threaded interface."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from baton.engine.config import EngineConfig
from baton.engine.errors import EngineError, UnsupportedModel
from baton.engine.execution.in_flight_step import InFlightStep
from baton.engine.execution.loaded_model import load, zeros
from baton.engine.execution.model_runner import ModelRunner
from baton.engine.execution.step_launcher import StepLauncher
from baton.engine.experts.group import ExpertGroup
from baton.engine.grammar.factory import make_grammar_masks
from baton.engine.kv.block_manager import BlockManager
from baton.engine.lora.registry import AdapterRegistry
from baton.engine.outputs import EngineStats, ExpertFigures, StepOutput
from baton.engine.parallel.lockstep import Lockstep
from baton.engine.parallel.rank0_model import Rank0Model
from baton.engine.parallel.tensor_parallel import TensorGroup
from baton.engine.pooling.pooler import Pooler
from baton.engine.request import FinishRule, Request, RequestId
from baton.engine.sampling.sampler import Sampler
from baton.engine.scheduling.request_limits import check_fits_model
from baton.engine.scheduling.schedule import Received, Schedule, ScheduledRequest
from baton.engine.scheduling.scheduler import Scheduler
from baton.engine.scheduling.step_clock import StepClock
from baton.engine.scheduling.step_rates import StepWork
from baton.engine.speculation.factory import speculator_of
from baton.engine.speculation.figures import SpeculationCounters
from baton.engine.vision.step_images import StepImages

WAITING_MULTIPLIER = 2.0
FORMING_MULTIPLIER = 30.0


class Engine:
    """A model, its KV pool and its requests. Not thread-safe: all calls must come from one thread."""

    def __init__(
        self,
        config: EngineConfig,
        allocate_pool: Callable[[tuple[int, ...], torch.dtype], Tensor] = zeros,
        on_progress: Callable[[float], None] | None = None,
        group: ExpertGroup | None = None,
        tensor: TensorGroup | None = None,
    ) -> None:
        """Load the checkpoint. Raises UnsupportedModel if it needs something that is not implemented.

        `allocate_pool` returns the pool's memory, zeroed, since attention multiplies unused slots by zero.
        `on_progress` receives the fraction of the weights loaded so far. With `group`, this engine is one rank of an
        expert-parallel group; the call returns once the group has formed and this rank has its experts. With `tensor`,
        this engine is rank 0 of a tensor-parallel group and drives the other ranks; the call returns once all of them
        have loaded their shards.
        """
        if tensor is not None:
            if group is not None:
                raise UnsupportedModel("expert_parallel and tensor_parallel cannot be used together: leave one at 1")
            tensor.form()
            if tensor.shard.rank:
                raise EngineError(f"rank {tensor.shard.rank} of a tensor-parallel group must follow rank 0")
        self.config = config
        loaded = load(config, allocate_pool, on_progress, group, tensor)
        self.model_config, self.layout, self.pool = loaded.config, loaded.layout, loaded.pool
        self.kv_parts, self.groups, self.cores = loaded.kv_parts, loaded.groups, loaded.cores
        self.fingerprint, self.origin, self.weights_source = loaded.fingerprint, loaded.origin, loaded.weights_source
        self.vocabulary, self.generates, self.pooling = loaded.vocabulary, loaded.generates, loaded.pooling
        self.finish_rule = FinishRule(self.model_config.eos_token_ids, loaded.max_model_len)
        model = Rank0Model(loaded.model, tensor) if tensor is not None else loaded.model
        vocab_size, eos_token_ids = self.model_config.vocab_size, self.model_config.eos_token_ids
        self.grammars = make_grammar_masks(Path(config.tokenizer_directory), vocab_size, eos_token_ids)
        sampler = Sampler(vocab_size, eos_token_ids)
        pooler = Pooler(self.pooling) if self.pooling is not None else None
        images = StepImages(loaded.vision) if loaded.vision is not None else None
        self.runner = ModelRunner(
            model, self.pool, config.block_size, sampler, self.grammars, pooler, loaded.groups, images
        )
        self.blocks = BlockManager(
            len(self.pool), config.block_size, config.enable_prefix_caching, loaded.groups, config.step_tokens
        )
        self._clock = StepClock()
        self.speculator = speculator_of(
            config, loaded.draft_model, vocab_size, self.blocks, self.finish_rule,
            self._clock.rates_for_drafts, self.grammars.may_draft,
            lambda: group.ranks.num_tokens_elsewhere if group is not None else 0,
        )  # fmt: skip
        self.adapters = AdapterRegistry(config.lora, loaded.adapted)
        self.scheduler = Scheduler(
            config, self.blocks, self.finish_rule, self.grammars.may_sample, self.speculator, self.adapters.use
        )
        if group is not None:
            group.join(self.origin.fingerprint)
            group.form()
        self.group = group
        self.lockstep = Lockstep(group) if group is not None else None
        self.tensor = tensor
        self._launcher = StepLauncher(self.runner, self.scheduler, tensor, self.lockstep)
        self._num_generated_tokens = self._num_prefilled_tokens = 0

    @property
    def has_work(self) -> bool:
        """Whether any request is waiting or running, or has failed."""
        num_requests = len(self.scheduler.waiting) + len(self.scheduler.running)
        return num_requests > 0 or self.grammars.has_failures or self._launcher.has_failures

    @property
    def must_step(self) -> bool:
        """Whether other ranks of the group wait for a step, even if this rank has nothing to compute.

        Also True once a tensor-parallel rank is lost: the next step raises GroupBroken.
        """
        if self.tensor is not None and self.tensor.is_broken:
            return True
        return self.lockstep is not None and self.lockstep.is_round_pending

    @property
    def watchdog_multiplier(self) -> float:
        """Factor on the watchdog's time limit for the current turn; may be read from any thread.

        A rank that waits for others must outlast a rank that hangs. Forming a group may involve reading many weights.
        """
        if self.is_short_of_ranks:
            return math.inf
        if self.lockstep is not None and self.lockstep.is_forming:
            return FORMING_MULTIPLIER
        group = self.lockstep or self.tensor
        return WAITING_MULTIPLIER if group is not None and group.is_waiting else 1.0

    @property
    def resumed_s(self) -> float:
        """Monotonic time from which on the watchdog counts the current turn; may be read from any thread.

        The turn may have begun earlier, when the multiplier was larger: it includes waits of any length for ranks. On a
        CPU, large images take minutes: each layer of their encoder counts anew, as does each read of offloaded weights.
        """
        waited_s = self.lockstep.resumed_s if self.lockstep is not None else 0.0
        encoded_s = self.runner.images.encoder.progressed_s if self.runner.images is not None else 0.0
        return max(waited_s, encoded_s, self.weights_source.counters.progressed_s)

    @property
    def waits_for_ranks(self) -> bool:
        """Whether the engine waits for other ranks or forms a group with them; may be read from any thread."""
        return self.watchdog_multiplier > 1

    @property
    def has_left(self) -> bool:
        """Whether this engine has left its group for good, so that its next step fails; may be read from any thread."""
        group = self.lockstep or self.tensor
        return group is not None and group.has_left

    @property
    def is_short_of_ranks(self) -> bool:
        """Whether the engine is stalled until more ranks join, however long that takes; may be read from any thread."""
        return self.lockstep is not None and self.lockstep.is_short

    def wake(self) -> None:
        """Do nothing: a call that wakes the loop so that it re-checks `must_step` and what can be scheduled."""

    def woken(self, epoch: int, round_number: int) -> None:
        """Note that another rank of the group has started this round of agreement; round 0 means a new epoch."""
        if self.lockstep is not None:
            self.lockstep.woken(epoch, round_number)

    def add(self, request: Request) -> None:
        """Queue a request. Raises InvalidRequest, UnknownAdapter or QueueFull."""
        check_fits_model(request, self.model_config, self.pooling, generates=self.generates)
        if request.pooling is not None and self.pooling is not None:
            request.computes_all = self.pooling.needs_all_tokens
        self.adapters.resolve(request)
        self.grammars.enter(request)
        self.scheduler.add(request)

    def schedule(self) -> Schedule:
        """Return the next step's work, the requests whose blocks are now ready for remote prefill, and those that have
        failed since the last call; may be empty.
        """
        failures = [*self.grammars.take_failures(), *self.adapters.take_failures(self.scheduler.waiting)]
        failed = [self.scheduler.fail(request, error) for request, error in failures if self.scheduler.has(request)]
        schedule = self.scheduler.schedule()
        schedule.failed += failed + self._launcher.take_failures()
        return schedule

    def run(self, schedule: Schedule) -> StepOutput:
        """Compute one step, together with the other ranks if this engine is in a group."""
        in_flight = self.launch(schedule.requests) if schedule.requests or self.lockstep is not None else None
        step = self.collect(in_flight) if in_flight is not None else StepOutput(finished_at_s=time.monotonic())
        step.outputs += schedule.failed
        return step

    @property
    def looks_ahead(self) -> bool:
        """Whether a step may be launched before the tokens of the previous step are known."""
        wanted = self.config.async_scheduling
        is_single_rank = self.lockstep is None and self.tensor is None
        if self.groups.states is not None:  # a request that ends, unknown to a step ahead, must not change its state
            return False
        return is_single_rank and (self.pool.device.type != "cpu" if wanted is None else wanted)

    def launch(
        self, scheduled: Sequence[ScheduledRequest], previous: InFlightStep | None = None
    ) -> InFlightStep | None:
        """Launch a step, queued after `previous` if given; None if memory ran out, or a rank of the group was lost.

        On a GPU the step is still running when this returns. In a group it has finished, since the ranks wait for each
        other.
        """
        started_at_s, epoch = time.monotonic(), self._epoch
        # Count before the step changes the requests.
        work, num_prompt_tokens = StepWork.of(scheduled), sum(item.num_new_prompt_tokens for item in scheduled)
        outcome = self._launcher.launch(scheduled, previous)
        if outcome is None:
            return None
        return InFlightStep(scheduled, outcome, work, num_prompt_tokens, epoch, started_at_s)

    def collect(self, step: InFlightStep) -> StepOutput:
        """Wait for a step's results and update the requests. Steps must be collected in launch order."""
        outputs = self.scheduler.update(step.scheduled, self._launcher.collect(step))
        now_s = time.monotonic()
        if not outputs:
            return StepOutput(finished_at_s=now_s)
        self._num_prefilled_tokens += step.num_prompt_tokens
        self._num_generated_tokens += sum(len(output.token_ids) for output in outputs)
        self.grammars.counters.num_forced += sum(len(output.forced) for output in outputs)
        if self._epoch == step.epoch:  # otherwise the time includes re-forming the group
            self._clock.add(step.scheduled, step.work, step.started_at_s, now_s, self.speculator, self.looks_ahead)
        self._clock.begin_next(now_s)
        return StepOutput(outputs, started_at_s=step.started_at_s, finished_at_s=now_s)

    def schedule_ahead(self, step: InFlightStep) -> list[ScheduledRequest]:
        """Return the work of the step after `step`, if it can be known while `step` runs; otherwise nothing."""
        return self.scheduler.schedule_ahead(step.scheduled)

    @property
    def _epoch(self) -> int:
        return self.lockstep.epoch if self.lockstep is not None else 0

    def abort(self, request_id: RequestId) -> bool:
        """End a request in any state and free the blocks it holds; False if the id is unknown."""
        return self.scheduler.abort(request_id)

    def end_receive(self, request_id: RequestId, received: Received) -> None:
        """Report that a receiving request's blocks are no longer being written; see `Scheduler.end_receive`."""
        self.scheduler.end_receive(request_id, received)

    @property
    def prefill_tokens_per_s(self) -> float:
        """Prompt tokens computed per second; 0: not known yet."""
        return self._clock.rates().prefill_tokens_per_s

    def stats(self) -> EngineStats:
        """Return the current load and the counters since start."""
        num_running = len(self.scheduler.running)
        rates = self._clock.rates()
        return EngineStats(
            num_running=num_running,
            num_waiting=self.scheduler.num_unfinished - num_running,
            num_queued_tokens=self.scheduler.backlog.num_queued_tokens,
            num_free_blocks=self.blocks.num_free,
            num_blocks=self.blocks.num_usable,
            step_s=self._clock.mean_s,
            num_generated_tokens=self._num_generated_tokens,
            num_prefilled_tokens=self._num_prefilled_tokens,
            num_preemptions=self.scheduler.num_preemptions,
            num_cached_tokens=self.scheduler.num_cached_tokens,
            num_looked_up_tokens=self.scheduler.num_looked_up_tokens,
            prefill_tokens_per_s=rates.prefill_tokens_per_s,
            decode_step_s=rates.decode_step_s,
            decode_sequence_s=rates.decode_sequence_s,
            num_awaited_blocks=self.scheduler.backlog.num_awaited_blocks,
            num_receiving=self.scheduler.backlog.num_receiving,
            pins=self.blocks.prefix_pins.figures,
            grammars=replace(self.grammars.counters),
            speculation=self.speculator.counters.copy() if self.speculator else SpeculationCounters(),
            resident_adapters=self.adapters.resident(),
            adapter_load_s=self.adapters.load_s,
            offload=replace(self.weights_source.counters),
            experts=self.group.share() if self.group is not None else None,
        )

    def expert_figures(self) -> ExpertFigures | None:
        """Return load and balance figures of the group's experts; None without an expert-parallel group."""
        return self.group.figures() if self.group is not None else None

    def close(self) -> None:
        """Leave the group, if any: expert-parallel ranks continue without this one, tensor-parallel followers end.

        Also ends the processes that try grammars.
        """
        self.grammars.close()
        if self.lockstep is not None:
            self.lockstep.close()
        if self.tensor is not None:
            self.tensor.close()
        self.weights_source.close()

    def check_integrity(self) -> None:
        """Assert that every block is accounted for."""
        self.scheduler.check_integrity()
