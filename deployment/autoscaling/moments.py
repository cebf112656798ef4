"""First two moments of a length or a time."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class Moments:
    """Mean and mean square; both 0 without samples."""

    mean: float = 0.0
    second: float = 0.0

    @classmethod
    def of(cls, values: Iterable[float]) -> "Moments":
        """Return the moments of samples."""
        known = list(values)
        if not known:
            return cls()
        return cls(sum(known) / len(known), sum(value * value for value in known) / len(known))

    @classmethod
    def mixed(cls, weights: Sequence[float], parts: Sequence["Moments"]) -> "Moments":
        """Return the moments of samples of several kinds; `weights`, not all 0, are proportional to their numbers."""
        total = sum(weights)
        pairs = list(zip(weights, parts, strict=True))
        return cls(
            sum(weight * part.mean for weight, part in pairs) / total,
            sum(weight * part.second for weight, part in pairs) / total,
        )

    @property
    def variance(self) -> float:
        """Variance, clamped at 0 against rounding errors."""
        return max(0.0, self.second - self.mean * self.mean)

    @property
    def cv2(self) -> float:
        """Squared coefficient of variation: 0 for constant, 1 for exponential samples."""
        square = self.mean * self.mean
        return self.variance / square if square > 0 else 0.0

    def without(self, others: "Moments", share: float) -> "Moments":
        """Return the moments of the rest, of samples of which this share, less than 1, has those of `others`."""
        left = 1 - share
        mean = max(0.0, self.mean - share * others.mean) / left
        return Moments(mean, max(mean * mean, (self.second - share * others.second) / left))

    def linear(self, fixed: float, factor: float) -> "Moments":
        """Return the exact moments of `fixed + factor * value`."""
        mean = fixed + factor * self.mean
        return Moments(mean, mean * mean + factor * factor * self.variance)

    def uncached(self, hit_rate: float) -> "Moments":
        """Return the moments of prompts' uncached tokens, estimated from the hit rate alone.

        Assumes that a prompt is cached either whole or not at all, which has the largest variance for the mean. A
        conservative estimate for when uncached tokens were not counted.
        """
        return Moments(self.mean * (1 - hit_rate), self.second * (1 - hit_rate))


FIRST_GUESS = 256.0  # tokens; routers use the same guess


def answer_moments(ended: Moments, num_ended: int, num_generated: float | None, most: float = inf) -> Moments:
    """Return the moments of output lengths. `most` is the mean of the requested `max_tokens`.

    Finished outputs alone are too short on average while long ones are still running: in the first minute, and when
    outputs become longer. Tokens generated in a window divided by outputs finished in it estimate the mean without this
    bias: for exponential lengths from the first output on (the estimate for censored lifetimes of Epstein and Sobel,
    Life testing, 1953), for any lengths in a steady state. One more output of the finished ones' mean length counts:
    without it, the first few to end would give too long a mean, because the mean of 1 / n is more than 1 / (mean of n).
    In a steady state it changes nothing, however few outputs end. Before the first output has finished, a guess is
    used. `num_generated` None: tokens were not counted.
    """
    if num_generated is None or (num_ended and not num_generated):
        return ended
    expected = (num_generated + ended.mean) / (num_ended + 1) if num_ended else max(FIRST_GUESS, num_generated)
    mean = min(expected, most)
    if ended.mean <= 0:
        return Moments(mean, 2 * mean * mean)
    scale = mean / ended.mean
    return Moments(mean, ended.second * scale * scale)  # the cv of finished outputs
