"""One step of a simulated engine, or several that are alike and follow each other."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from baton.engine.request import FinishRule
from baton.engine.scheduling.schedule import ScheduledRequest
from baton.engine.scheduling.step_rates import StepWork

SAME_MOMENT = 1e-9  # of a step: an event so soon after a step's end belongs to that end


@dataclass(slots=True, eq=False)
class Steps:
    """Equal steps, from one schedule."""

    scheduled: Sequence[ScheduledRequest]  # of the first
    work: StepWork
    begins_s: float
    step_s: float  # of each
    num_steps: int = 1

    @property
    def ends_s(self) -> float:
        """When the last of them ends."""
        return self.begins_s + self.num_steps * self.step_s

    def num_over(self, now_s: float) -> int:
        """How many of them have ended."""
        return min(self.num_steps, int((now_s - self.begins_s) / self.step_s)) if self.step_s > 0 else 0

    def cut_short(self, now_s: float) -> bool:
        """End with the step under way; False if that is the last anyway."""
        if self.num_steps <= 1 or self.step_s <= 0:
            return False
        num_begun = max(1, ceil((now_s - self.begins_s) / self.step_s - SAME_MOMENT))
        if num_begun >= self.num_steps:
            return False
        self.num_steps = num_begun
        return True

    def last(self) -> Sequence[ScheduledRequest]:
        """Compute and sample all tokens of the steps in front of the last; returns the work of the last.

        None of these tokens fills a block or ends a request, so there is nothing else for the scheduler to know.
        """
        num_skipped = self.num_steps - 1
        if num_skipped == 0:
            return self.scheduled
        for item in self.scheduled:
            item.request.token_ids += item.request.token_ids[-1:] * num_skipped
            item.request.num_computed_tokens += num_skipped
        return [ScheduledRequest.of(item.request, 1) for item in self.scheduled]


def num_alike(scheduled: Sequence[ScheduledRequest], rule: FinishRule, block_size: int) -> int:
    """Return how many steps the scheduler would schedule alike if nothing comes from outside.

    A step that only decodes is repeated until a request ends or needs a block: until then no block and no place in the
    batch becomes free or is taken, and what waits goes on waiting.
    """
    num_steps = 1 << 30
    for item in scheduled:
        request = item.request
        if item.num_new_tokens > 1 or item.start < request.num_prompt_tokens or not item.samples:
            return 1
        num_free_slots = len(request.block_table) * block_size - request.num_tokens
        num_steps = min(num_steps, rule.num_left(request), num_free_slots + 1)
    return num_steps
