"""How long answers are."""

DECAY = 0.99  # of an answer's weight with each answer after it: about the last hundred count
FIRST_GUESS = 256.0  # tokens
FIRST_WEIGHT = 4.0  # answers that the guess counts for


class AnswerLength:
    """Owns the mean length of the last answers, in tokens."""

    def __init__(self) -> None:
        self._num_answers = FIRST_WEIGHT
        self._num_tokens = FIRST_WEIGHT * FIRST_GUESS

    def note(self, num_tokens: int) -> None:
        """An answer ended after so many tokens."""
        self._num_answers = DECAY * self._num_answers + 1
        self._num_tokens = DECAY * self._num_tokens + num_tokens

    @property
    def mean(self) -> float:
        """At least 1."""
        return max(1.0, self._num_tokens / self._num_answers)
