"""Times of a draft model: of a pass that drafts a token for each of some requests, and of a prompt's tokens."""

import sys
from collections import deque
from collections.abc import Sequence
from statistics import median

NUM_KEPT = 9  # latest passes, whose median does not depend on a few that were delayed
TRUSTED_PASSES = 3
FIRST_AGE, LAST_AGE = 64, 1024  # steps without a pass after which the times are measured again
WEIGHT = 0.2  # of the newest chunk in the mean time of a prompt's tokens


class PassTimes:
    """Measured times of a draft model's passes, by the number of requests in powers of two."""

    def __init__(self) -> None:
        self.prompt_token_s = 0.0  # 0: not known yet
        self._passes: dict[int, deque[float]] = {}
        self._age = 0
        self._longest_age = FIRST_AGE

    @property
    def most_passes(self) -> int:
        """Passes that a step may have: as long as their time is not known, as few as measure it."""
        return sys.maxsize if self._trusted() else TRUSTED_PASSES

    def begin_step(self) -> None:
        """Note a step. After many without a pass the times are given up: the machine may have been busy."""
        self._age += 1
        if self._age > self._longest_age:
            self._passes.clear()
            self._age, self._longest_age = 0, min(2 * self._longest_age, LAST_AGE)

    def add(self, num_requests: int, pass_s: float) -> None:
        """Add the time of a pass that drafted one token for each of some requests."""
        times = self._passes.setdefault(num_requests.bit_length(), deque(maxlen=NUM_KEPT))
        times.append(pass_s)
        self._age = 0
        if len(times) == NUM_KEPT:  # they pay
            self._longest_age = FIRST_AGE

    def add_chunk(self, num_tokens: int, chunk_s: float) -> None:
        """Add the time of a chunk of prompts."""
        token_s = chunk_s / num_tokens
        self.prompt_token_s += (WEIGHT if self.prompt_token_s else 1.0) * (token_s - self.prompt_token_s)

    def pass_s(self, num_requests: int) -> float:
        """Return the time of a pass for some requests: that of the nearest number that is known; 0: none is."""
        size = num_requests.bit_length()
        known = self._trusted()
        if not known:
            return 0.0
        return median(self._passes[min(known, key=lambda each: abs(each - size))])

    def _trusted(self) -> Sequence[int]:
        return [each for each, times in self._passes.items() if len(times) >= TRUSTED_PASSES]
