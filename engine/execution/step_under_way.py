"""A step that was launched, and what its end is to be put down to."""

from collections.abc import Sequence
from dataclasses import dataclass

from baton.engine.execution.launched_step import LaunchedStep
from baton.engine.scheduling.schedule import ScheduledRequest, StepResult
from baton.engine.scheduling.step_rates import StepWork


@dataclass(frozen=True, slots=True)
class StepUnderWay:
    """See Engine.launch."""

    scheduled: Sequence[ScheduledRequest]
    outcome: LaunchedStep | list[StepResult]  # the results, once they are known; in a group they are
    work: StepWork
    num_prompt_tokens: int
    epoch: int  # of the group
    started_at_s: float  # monotonic clock
