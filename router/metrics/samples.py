"""Sums of samples, as they grow."""

from dataclasses import dataclass

from baton.membership.registry.router_report import SampleSums


@dataclass(slots=True)
class Samples:
    """What has been seen so far."""

    num: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        """One more sample."""
        self.num += 1
        self.total += value
        self.squares += value * value

    def remove(self, value: float) -> None:
        """A sample that was added is none."""
        self.num -= 1
        self.total -= value
        self.squares -= value * value

    def sums(self) -> SampleSums:
        """As they are told."""
        return SampleSums(self.num, self.total, self.squares)
