"""Times of an engine's steps."""

from collections.abc import Sequence

from baton.engine.scheduling.schedule import ScheduledRequest
from baton.engine.scheduling.step_rates import StepRates, StepTimes, StepWork
from baton.engine.speculation.speculator import Speculator

STEP_TIME_WEIGHT = 0.1  # weight of the newest step in the running mean
PLAIN_STEPS = 4  # decoding steps without drafts before the first with drafts
MAX_DRAFTED_STEPS = 64  # steps with drafts before another without
STEPS_PER_FIT = 8  # for drafts: a fit takes as long as many drafts


class StepClock:
    """Running mean of step times, and the rates fitted to the steps without drafts."""

    def __init__(self) -> None:
        self.mean_s = 0.0
        self._times = StepTimes()
        self._collected_at_s = 0.0  # monotonic clock
        self._num_plain = 0
        self._num_drafted = 0  # since the last step without drafts
        self._fitted = StepRates()
        self._fitted_at = 0  # number of steps without drafts

    def rates(self) -> StepRates:
        """Return the rates fitted to the steps so far."""
        return self._times.rates()

    def rates_for_drafts(self) -> StepRates:
        """Return the rates if they are those of recent steps that decode without drafts; unknown ones otherwise.

        As drafts are chosen by the time of a step without them, some steps must have none.
        """
        if self._num_plain < PLAIN_STEPS or self._num_drafted >= MAX_DRAFTED_STEPS:
            return StepRates()
        if not self._fitted_at or self._num_plain >= self._fitted_at + STEPS_PER_FIT:
            self._fitted, self._fitted_at = self.rates(), self._num_plain
        return self._fitted

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
        looks_ahead: bool = False,
    ) -> None:
        """Add a step that was launched at `started_at_s` and has ended.

        speculator: gets the times of drafts. looks_ahead: other steps are launched ahead, so the host's work between
        two steps adds time only to those with drafts.
        """
        step_s = now_s - max(started_at_s, self._collected_at_s)
        self.mean_s += STEP_TIME_WEIGHT * (step_s - self.mean_s)
        num_drafted = sum(len(item.drafts) for item in scheduled)
        self._num_drafted += num_drafted > 0
        if not num_drafted:
            self._times.add(work, step_s)
            if work.num_sequences:
                self._num_plain, self._num_drafted = self._num_plain + 1, 0
        elif speculator is not None and not work.num_prompt_tokens:
            between_s = max(started_at_s - self._collected_at_s - speculator.drafter_s, 0.0)
            added_s = between_s if looks_ahead and between_s < self.mean_s else 0.0  # otherwise there was no work
            speculator.note_step(work.num_sequences, num_drafted, step_s + added_s)
