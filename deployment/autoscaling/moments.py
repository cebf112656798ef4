"""The first two moments of a length or a time."""

from collections.abc import Iterable
from dataclasses import dataclass


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
