"""Rests of a drafter whose drafts do not pay: steps in front of which nothing is planned."""

from dataclasses import dataclass

IDLE_STEPS = 16  # consecutive plans without drafts in front of a rest
PAYING_STEPS = 16  # plans with drafts after which the next rest is a short one again
FIRST_REST, LAST_REST = 32, 256  # steps of a rest


@dataclass(slots=True)
class Rest:
    """State of the rests: even a plan without drafts takes time, and so does keeping hidden states for a head.

    Rests become longer as long as drafts do not pay. They end early when half of the sequences have ended, as drafts
    pay more in a smaller batch.
    """

    num_steps: int = 0  # of the latest rest so far
    _num_left: int = 0
    _length: int = FIRST_REST
    _num_idle: int = 0
    _num_paying: int = 0
    _num_sequences: int = 0  # when it began

    def take(self, num_sequences: int) -> bool:
        """Return whether nothing is planned for the next step, in which sequences decode, and count it if so."""
        if not self._num_left or 0 < 2 * num_sequences <= self._num_sequences:
            self._num_left = 0
            return False
        self._num_left -= 1
        self.num_steps += 1
        return True

    def end(self) -> int:
        """Return the number of steps of the rest that has just ended; 0: there was none."""
        num_steps, self.num_steps = self.num_steps, 0
        return num_steps

    def note(self, num_sequences: int, *, pays: bool) -> None:
        """Note a plan at known prices, in which drafts pay or do not."""
        if pays:
            self._num_idle, self._num_paying = 0, self._num_paying + 1
            if self._num_paying >= PAYING_STEPS:
                self._length = FIRST_REST
            return
        self._num_idle += 1
        if self._num_idle >= IDLE_STEPS:
            self._num_idle = self._num_paying = 0
            self._num_left, self._num_sequences = self._length, num_sequences
            self._length = min(2 * self._length, LAST_REST)
