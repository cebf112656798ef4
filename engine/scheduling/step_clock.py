"""Times of an engine's steps."""

from collections.abc import Sequence

from baton.engine.scheduling.schedule import ScheduledRequest
from baton.engine.scheduling.step_rates import StepRates, StepTimes, StepWork
from baton.engine.speculation.speculator import Speculator

STEP_TIME_WEIGHT = 0.1  # weight of the newest step in the running mean


class StepClock:
    """Running mean of step times, and the rates fitted to the steps without drafts."""

    def __init__(self) -> None:
        self.mean_s = 0.0
        self._times = StepTimes()
        self._collected_at_s = 0.0  # monotonic clock

    def rates(self) -> StepRates:
        """Return the rates fitted to the steps so far."""
        return self._times.rates()

    def begin_next(self, now_s: float) -> None:
        """Note that a step was collected, until which the device did not begin the next one. Monotonic clock."""
        self._collected_at_s = now_s

    def add(
        self,
        scheduled: Sequence[ScheduledRequest],
        work: StepWork,
        started_at_s: float,
        now_s: float,
        speculator: Speculator | None,
    ) -> None:
        """Add a step that was launched at `started_at_s` and has ended. speculator: gets the times of drafts."""
        step_s = now_s - max(started_at_s, self._collected_at_s)
        self.mean_s += STEP_TIME_WEIGHT * (step_s - self.mean_s)
        num_drafted = sum(len(item.drafts) for item in scheduled)
        if not num_drafted:
            self._times.add(work, step_s)
        elif speculator is not None and not work.num_prompt_tokens:
            speculator.note_step(work.num_sequences, num_drafted, step_s)
