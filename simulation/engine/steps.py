"""One step of a simulated engine, or several equal consecutive ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from baton.engine.request import FinishRule
from baton.engine.scheduling.schedule import ScheduledRequest
from baton.engine.scheduling.step_rates import StepWork

SAME_MOMENT = 1e-9  # in steps: an event so soon after a step's end counts as simultaneous with it


@dataclass(slots=True, eq=False)
class Steps:
    """Equal consecutive steps with one schedule."""

    scheduled: Sequence[ScheduledRequest]  # by the first of the steps
    work: StepWork
    begins_s: float
    step_s: float  # time of each step
    num_steps: int = 1

    @property
    def ends_s(self) -> float:
        """Time at which the last of them ends."""
        return self.begins_s + self.num_steps * self.step_s

    def num_over(self, now_s: float) -> int:
        """Return how many of them have ended."""
        return min(self.num_steps, int((now_s - self.begins_s) / self.step_s)) if self.step_s > 0 else 0

    def truncate(self, now_s: float) -> bool:
        """End with the current step; return False if that is the last anyway."""
        if self.num_steps <= 1 or self.step_s <= 0:
            return False
        num_begun = max(1, ceil((now_s - self.begins_s) / self.step_s - SAME_MOMENT))
        if num_begun >= self.num_steps:
            return False
        self.num_steps = num_begun
        return True

    def last(self) -> Sequence[ScheduledRequest]:
        """Add the tokens of all steps before the last, and return the work of the last.

        None of these tokens fills a block or ends a request, so the scheduler needs no other update.
        """
        num_skipped = self.num_steps - 1
        if num_skipped == 0:
            return self.scheduled
        for item in self.scheduled:
            item.request.token_ids += item.request.token_ids[-1:] * num_skipped
            item.request.num_computed_tokens += num_skipped
        return [ScheduledRequest.of(item.request, 1) for item in self.scheduled]


def num_alike(scheduled: Sequence[ScheduledRequest], rule: FinishRule, block_size: int) -> int:
    """Return how many equal steps the scheduler would schedule if no request or KV arrives.

    A step that only decodes is repeated until a request ends or needs a block. Until then the free blocks and the batch
    stay the same, so that waiting requests cannot be admitted.
    """
    num_steps = 1 << 30
    for item in scheduled:
        request = item.request
        if item.num_new_tokens > 1 or item.start < request.num_prompt_tokens or not item.samples:
            return 1
        num_free_slots = len(request.block_table) * block_size - request.num_tokens
        num_steps = min(num_steps, rule.num_left(request), num_free_slots + 1)
    return num_steps
