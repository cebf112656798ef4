"""How fast a replica computes prompts, as it would have learnt it."""

from collections.abc import Iterable

from baton.engine.scheduling.step_rates import DECAY
from baton.simulation.engine.spec import WorkerSpec
from baton.simulation.twin.step import Chunk


class PromptRate:
    """Owns the tokens of the last steps with prompts, and their time beside what is fixed of a step."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._num_tokens = self._seconds = 0.0

    def note(self, chunks: Iterable[Chunk]) -> None:
        """A step computes them."""
        for chunk in chunks:
            self._num_tokens += chunk.num_tokens
            self._seconds += self._spec.prompts_s(chunk.num_tokens, chunk.num_attended)
        self._num_tokens *= DECAY
        self._seconds *= DECAY

    @property
    def tokens_per_s(self) -> float:
        """Of tokens as deep in their prompts as the last ones; 0 before the first."""
        if not self._num_tokens:
            return 0.0
        return self._num_tokens / self._seconds if self._spec.attended_s else self._spec.prefill_tokens_per_s
