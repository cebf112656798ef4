"""Expected reuse of prefixes and expected length of outputs, learnt from recent requests."""

from collections import deque

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


LENGTH_DECAY = 0.99  # of an answer's weight with each answer after it: about the last hundred count
LENGTH_FIRST_GUESS = 256.0  # tokens
LENGTH_FIRST_WEIGHT = 4  # answers that the guess counts for
NUM_REMEMBERED = 128  # of the last answers, each by itself
NUM_TYPICAL = 4  # lengths that stand for them


class OutputLength:
    """Owns the lengths of the last answers, in tokens: their mean, and how far they are from each other."""

    def __init__(self) -> None:
        self._num_answers = float(LENGTH_FIRST_WEIGHT)
        self._num_tokens = LENGTH_FIRST_WEIGHT * LENGTH_FIRST_GUESS
        self._last = deque([LENGTH_FIRST_GUESS] * LENGTH_FIRST_WEIGHT, maxlen=NUM_REMEMBERED)
        self._typical: tuple[float, ...] | None = None  # of these; None: not looked for yet

    def note(self, num_tokens: int) -> None:
        """An answer ended after so many tokens."""
        self._num_answers = LENGTH_DECAY * self._num_answers + 1
        self._num_tokens = LENGTH_DECAY * self._num_tokens + num_tokens
        self._last.append(float(num_tokens))
        self._typical = None

    @property
    def mean(self) -> float:
        """At least 1."""
        return max(1.0, self._num_tokens / self._num_answers)

    @property
    def typical(self) -> tuple[float, ...]:
        """A few lengths that are as likely as each other, the shortest first; each at least 1.

        They are the middles of equal parts of the last answers: a mean alone would hide that a prompt in between which
        most answers hardly feel makes a short one come late.
        """
        if self._typical is None:
            ordered = sorted(self._last)
            places = [(2 * part + 1) * len(ordered) // (2 * NUM_TYPICAL) for part in range(NUM_TYPICAL)]
            self._typical = tuple(max(1.0, ordered[place]) for place in places)
        return self._typical
