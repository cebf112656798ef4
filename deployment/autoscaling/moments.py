"""The first two moments of a length or a time."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class Moments:
    """Mean, and mean of the squares; both 0 where there are no samples yet."""

    mean: float = 0.0
    second: float = 0.0

    @classmethod
    def of(cls, values: Iterable[float]) -> "Moments":
        """The moments of samples."""
        known = list(values)
        if not known:
            return cls()
        return cls(sum(known) / len(known), sum(value * value for value in known) / len(known))

    @property
    def variance(self) -> float:
        """Never negative, though rounding may make it so."""
        return max(0.0, self.second - self.mean * self.mean)

    @property
    def cv2(self) -> float:
        """Squared coefficient of variation: 0 if all are alike, 1 for exponential ones."""
        return self.variance / (self.mean * self.mean) if self.mean > 0 else 0.0

    def linear(self, fixed: float, factor: float) -> "Moments":
        """The moments of `fixed + factor * value`: exact."""
        mean = fixed + factor * self.mean
        return Moments(mean, mean * mean + factor * factor * self.variance)

    def uncached(self, hit_rate: float) -> "Moments":
        """Of prompts' uncached tokens, if all that is known is which share of all tokens was cached.

        As if a prompt were cached whole or not at all. Nothing varies more at the same mean: a cautious guess where the
        uncached tokens themselves were not counted.
        """
        return Moments(self.mean * (1 - hit_rate), self.second * (1 - hit_rate))


FIRST_GUESS = 256.0  # tokens, as routers guess too


def answer_moments(ended: Moments, num_ended: int, num_generated: float | None, most: float = inf) -> Moments:
    """The moments of answers' lengths; `most`: the mean of what was asked for at most.

    Those that ended are too short on the average wherever not all have had the time to: in the first minute, and when
    answers become longer. Of the tokens that were generated in a window, one was the last of each answer that ended in
    it. So tokens over ends are the mean length: of exponential answers from the first one on (the estimate for censored
    lifetimes of Epstein and Sobel, Life testing, 1953), of any answers once as many end as begin. Until one has ended
    the next token may be an end, but of a length that nothing is known of. None: tokens were not counted.
    """
    if num_generated is None or (num_ended and not num_generated):
        return ended
    mean = min(num_generated / num_ended if num_ended else max(FIRST_GUESS, num_generated), most)
    if ended.mean <= 0:
        return Moments(mean, 2 * mean * mean)
    return Moments(mean, ended.second * (mean / ended.mean) ** 2)  # as different from each other as those that ended
