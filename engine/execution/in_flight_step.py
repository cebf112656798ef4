"""A launched step, and the bookkeeping needed when it is collected."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from baton.engine.outputs import PositionLogprobs
from baton.engine.scheduling.schedule import ScheduledRequest, StepResult
from baton.engine.scheduling.step_rates import StepWork


class HostCopy:
    """Asynchronous copy of a tensor from the device to the host."""

    def __init__(self, numbers: Tensor) -> None:
        """Start the copy, queued after the work already launched on the device."""
        self._numbers, self._copied = numbers, None
        if numbers.is_cuda:
            self._numbers = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self._numbers.copy_(numbers, non_blocking=True)
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()

    def wait(self) -> list[int]:
        """Wait for the copy and return its elements."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._numbers.tolist()


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """Device-side results of a launched step."""

    scheduled: Sequence[ScheduledRequest]
    token_ids: Tensor  # [num_sampled] int64 on the device, one per request that samples and one per draft
    copy: HostCopy  # host copy of `token_ids`
    logprobs: Sequence[PositionLogprobs | None]  # by sampled token
    prompt_logprobs: Sequence[list[PositionLogprobs]]  # by scheduled request
    late_rows: frozenset[int] = frozenset()  # rows of `token_ids` sampled without the mask of their grammar
    forced: Mapping[int, Sequence[int]] = field(default_factory=dict)  # by row: tokens that must follow the sampled one
    pooled_places: Sequence[int] = ()  # scheduled requests of which `sums` has a row each
    sums: Tensor | None = None  # [len(pooled_places), hidden] float64 on the device; None: there are none


@dataclass(frozen=True, slots=True)
class InFlightStep:
    """A step between `Engine.launch` and `Engine.collect`."""

    scheduled: Sequence[ScheduledRequest]
    outcome: LaunchedStep | list[StepResult]  # in a group, where steps are synchronous, already the results
    work: StepWork
    num_prompt_tokens: int
    epoch: int  # epoch of the group when the step was launched
    started_at_s: float  # monotonic clock
