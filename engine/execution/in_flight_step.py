"""A step that was launched, and what its end is to be put down to."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from baton.engine.outputs import PositionLogprobs
from baton.engine.scheduling.schedule import ScheduledRequest, StepResult
from baton.engine.scheduling.step_rates import StepWork


class HostCopy:
    """Numbers on their way from a device to the host."""

    def __init__(self, numbers: Tensor) -> None:
        """Begins, behind what is under way on the device."""
        self._numbers, self._has_come = numbers, None
        if numbers.is_cuda:
            self._numbers = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self._numbers.copy_(numbers, non_blocking=True)
            self._has_come = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._has_come.record()

    def wait(self) -> list[int]:
        """The numbers, once they are there."""
        if self._has_come is not None:
            self._has_come.synchronize()
        return self._numbers.tolist()


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """What was launched, and what it says; of a request that samples, the sampled token comes last."""

    scheduled: Sequence[ScheduledRequest]
    token_ids: Tensor  # [num_sampled] int64 on the device: by request, of those that sample
    copy: HostCopy  # of them
    logprobs: Sequence[PositionLogprobs | None]  # of them
    prompt_logprobs: Sequence[list[PositionLogprobs]]  # by scheduled request


@dataclass(frozen=True, slots=True)
class InFlightStep:
    """See Engine.launch."""

    scheduled: Sequence[ScheduledRequest]
    outcome: LaunchedStep | list[StepResult]  # the results, once they are known; in a group they are
    work: StepWork
    num_prompt_tokens: int
    epoch: int  # of the group
    started_at_s: float  # monotonic clock
