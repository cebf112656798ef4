"""Launching and collecting steps, on one rank or together with others, and what follows if memory runs out."""

import logging
from collections.abc import Sequence

import torch

from baton.engine.execution.device import wait_for
from baton.engine.execution.in_flight_step import InFlightStep, LaunchedStep
from baton.engine.execution.model_runner import ModelRunner
from baton.engine.outputs import RequestOutput
from baton.engine.parallel.lockstep import Lockstep
from baton.engine.parallel.tensor_parallel import TensorGroup
from baton.engine.request import RequestStatus
from baton.engine.scheduling.schedule import ScheduledRequest, StepResult
from baton.engine.scheduling.scheduler import Scheduler

log = logging.getLogger(__name__)


class StepLauncher:
    """Launcher of an engine's steps, and owner of the outputs of requests that fail with a step."""

    def __init__(
        self, runner: ModelRunner, scheduler: Scheduler, tensor: TensorGroup | None, lockstep: Lockstep | None
    ) -> None:
        """tensor, lockstep: of the group, if this rank is in one."""
        self._runner = runner
        self._scheduler = scheduler
        self._tensor = tensor
        self._lockstep = lockstep
        self._failed: list[RequestOutput] = []
        self._device = runner.pool.device
        self._is_recurrent = runner.groups.states is not None

    @property
    def has_failures(self) -> bool:
        """Whether requests have failed since the last `take_failures`."""
        return bool(self._failed)

    def take_failures(self) -> list[RequestOutput]:
        """Return the outputs of requests that have failed with their steps since the last call."""
        failed, self._failed = self._failed, []
        return failed

    def launch(
        self, scheduled: Sequence[ScheduledRequest], previous: InFlightStep | None
    ) -> LaunchedStep | list[StepResult] | None:
        """Launch a step, and in a group compute it; None if memory ran out, or a rank of the group was lost.

        previous: the step that is in flight. Raises OutOfMemoryError in a group, or if no smaller step exists.
        """
        if self._tensor is not None:
            self._tensor.check()
            return self._runner.run(scheduled)
        if self._lockstep is not None:
            return self._compute_in_lockstep(self._lockstep, scheduled)
        outcome = previous.outcome if previous is not None else None
        try:
            launched = self._runner.launch(scheduled, outcome if isinstance(outcome, LaunchedStep) else None)
        except torch.OutOfMemoryError as error:
            self._shrink(scheduled, error)
            if self._is_recurrent:  # some layers have advanced their states
                self._failed += self._scheduler.restart(scheduled, "a step ran out of GPU memory")
        else:
            self._scheduler.budget.recover()
            return launched
        self._clean_up()
        for item in scheduled:
            self._scheduler.blocks.trim(item.request)
        return None

    def collect(self, step: InFlightStep) -> list[StepResult]:
        """Wait for a step's results, which are in the order of its requests.

        If memory runs out while recurrent states advance by drafts that were right, the requests with drafts start
        again. Raises OutOfMemoryError if no smaller step exists.
        """
        if not isinstance(step.outcome, LaunchedStep):
            return step.outcome
        results = self._runner.results(step.outcome)
        try:
            self._runner.accept(step.scheduled, results)
        except torch.OutOfMemoryError as error:
            self._shrink(step.scheduled, error)
        else:
            return results
        self._clean_up()
        drafted = [each for each in step.scheduled if each.drafts and each.request.status is RequestStatus.RUNNING]
        self._failed += self._scheduler.restart(drafted, "a step ran out of GPU memory")
        return results

    def _compute_in_lockstep(
        self, lockstep: Lockstep, scheduled: Sequence[ScheduledRequest]
    ) -> list[StepResult] | None:
        runner, num_tokens = self._runner, sum(item.num_new_tokens for item in scheduled)
        can_repeat = not self._is_recurrent
        results = lockstep.run(num_tokens, lambda: runner.run(scheduled), runner.run_idle, can_repeat=can_repeat)
        if results is None and scheduled:  # broken off after some layers have advanced their states
            self._failed += self._scheduler.restart(scheduled, "a rank of the expert-parallel group was lost")
            return None
        return results or []

    def _shrink(self, scheduled: Sequence[ScheduledRequest], error: torch.OutOfMemoryError) -> None:
        """Let the next steps have fewer tokens. Raises the error if no smaller step exists."""
        num_tokens = sum(item.num_new_tokens for item in scheduled)
        if not self._scheduler.budget.shrink(num_tokens):
            raise error
        log.warning("a step of %d tokens ran out of GPU memory; the next one is smaller: %s", num_tokens, error)

    def _clean_up(self) -> None:
        """Wait for what was launched of a step, and free its memory.

        Must be called after the error was handled, which keeps tensors alive, and before the next schedule: the step
        writes to blocks that a peer may fill next.
        """
        wait_for(self._device)
        torch.cuda.empty_cache()
