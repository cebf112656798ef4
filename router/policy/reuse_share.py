"""How much of what was computed once is wanted again."""

REUSE_DECAY = 0.99  # of a prompt's weight with each prompt after it: about the last hundred count
REUSE_FIRST_GUESS = 0.5
REUSE_FIRST_WEIGHT = 2000.0  # tokens that the guess counts for


class ReuseShare:
    """Owns the share of the last prompts' tokens that some worker had cached when they came."""

    def __init__(self) -> None:
        self._num_tokens = REUSE_FIRST_WEIGHT
        self._num_cached = REUSE_FIRST_WEIGHT * REUSE_FIRST_GUESS

    def note(self, num_tokens: int, num_cached: int) -> None:
        """A prompt came, of which the worker with most of it had so many tokens."""
        self._num_tokens = REUSE_DECAY * self._num_tokens + num_tokens
        self._num_cached = REUSE_DECAY * self._num_cached + num_cached

    @property
    def value(self) -> float:
        """0 to 1."""
        return self._num_cached / self._num_tokens
