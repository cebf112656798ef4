"""How much of its time a worker computes prompts."""

from math import exp

SPAN_S = 5.0  # over which the share is averaged


class PromptShare:
    """Owns the share of the last seconds that a worker's prompt tokens took by its rate: 0 or more, seldom over 1."""

    def __init__(self) -> None:
        self._value = 0.0
        self._noted_s: float | None = None
        self._num_tokens = 0  # of prompts, up to then

    def note(self, num_tokens: int, tokens_per_s: float, now_s: float) -> None:
        """The worker has computed so many tokens of prompts in its life; a rate of 0 is not known yet."""
        if self._noted_s is not None and now_s > self._noted_s and tokens_per_s > 0:
            seconds = now_s - self._noted_s
            share = (num_tokens - self._num_tokens) / tokens_per_s / seconds
            self._value = share + (self._value - share) * exp(-seconds / SPAN_S)
        self._noted_s, self._num_tokens = now_s, num_tokens

    @property
    def value(self) -> float:
        """As of the last report."""
        return self._value
