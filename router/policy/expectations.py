"""Expected reuse of prefixes and expected length of outputs, learnt from recent requests."""

from collections import deque

REUSE_DECAY = 0.99  # of a prompt's weight per later prompt: about the last hundred count
REUSE_FIRST_GUESS = 0.5
REUSE_FIRST_WEIGHT = 2000.0  # tokens that the guess counts for


class ReuseShare:
    """Share of recent prompts' tokens that some worker had cached on arrival."""

    def __init__(self) -> None:
        self._num_tokens = REUSE_FIRST_WEIGHT
        self._num_cached = REUSE_FIRST_WEIGHT * REUSE_FIRST_GUESS

    def note(self, num_tokens: int, num_cached: int) -> None:
        """Count a prompt; `num_cached`: tokens that the worker with most of it had."""
        self._num_tokens = REUSE_DECAY * self._num_tokens + num_tokens
        self._num_cached = REUSE_DECAY * self._num_cached + num_cached

    @property
    def value(self) -> float:
        """0 to 1."""
        return self._num_cached / self._num_tokens


LENGTH_DECAY = 0.99  # of an output's weight per later output: about the last hundred count
LENGTH_FIRST_GUESS = 256.0  # tokens
LENGTH_FIRST_WEIGHT = 4  # outputs that the guess counts for
NUM_REMEMBERED = 128  # individual lengths of recent outputs
NUM_TYPICAL = 4  # representative lengths


class OutputLength:
    """Lengths of recent outputs in tokens: their mean and their spread."""

    def __init__(self) -> None:
        self._num_answers = float(LENGTH_FIRST_WEIGHT)
        self._num_tokens = LENGTH_FIRST_WEIGHT * LENGTH_FIRST_GUESS
        self._last = deque([LENGTH_FIRST_GUESS] * LENGTH_FIRST_WEIGHT, maxlen=NUM_REMEMBERED)
        self._typical: tuple[float, ...] | None = None  # None: to be computed

    def note(self, num_tokens: int) -> None:
        """Count an output of this length."""
        self._num_answers = LENGTH_DECAY * self._num_answers + 1
        self._num_tokens = LENGTH_DECAY * self._num_tokens + num_tokens
        self._last.append(float(num_tokens))
        self._typical = None

    @property
    def mean(self) -> float:
        """Mean length; at least 1."""
        return max(1.0, self._num_tokens / self._num_answers)

    @property
    def typical(self) -> tuple[float, ...]:
        """A few equally likely lengths, shortest first; each at least 1.

        They are the medians of equal parts of the recent outputs. The mean alone would hide that a prompt computed in
        between, which most outputs hardly notice, delays a short one.
        """
        if self._typical is None:
            ordered = sorted(self._last)
            places = [(2 * part + 1) * len(ordered) // (2 * NUM_TYPICAL) for part in range(NUM_TYPICAL)]
            self._typical = tuple(max(1.0, ordered[place]) for place in places)
        return self._typical
