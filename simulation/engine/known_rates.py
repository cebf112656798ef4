"""The rates of a simulated engine's spec, in place of rates that are measured from its steps."""

from baton.engine.scheduling.step_rates import DECAY, StepRates, StepWork
from baton.simulation.engine.spec import WorkerSpec


class KnownRates:
    """The rates of a spec, each 0 until the first step that would show it, as with `StepTimes`.

    The `attended_s` of a token depends on its position in the prompt, so the mean over recent prompts is used.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._has_stepped = False
        self._num_prompt_tokens = self._prompts_s = 0.0  # of recent steps

    def add(self, work: StepWork, step_s: float) -> None:
        """Record a step; its time is that of the spec."""
        self._has_stepped = True
        if work.num_prompt_tokens:
            prompts_s = self._spec.prompts_s(work.num_prompt_tokens, work.num_attended)
            self._num_prompt_tokens = DECAY * self._num_prompt_tokens + work.num_prompt_tokens
            self._prompts_s = DECAY * self._prompts_s + prompts_s

    def rates(self) -> StepRates:
        """Return the rates known so far."""
        if not self._has_stepped:
            return StepRates()
        spec = self._spec
        return StepRates(self._prefill_tokens_per_s(), spec.step_s + spec.sequence_s, spec.sequence_s)

    def _prefill_tokens_per_s(self) -> float:
        if not self._num_prompt_tokens:
            return 0.0
        if not self._spec.attended_s:
            return self._spec.prefill_tokens_per_s  # exact, since the router breaks ties between equal workers randomly
        return self._num_prompt_tokens / self._prompts_s
