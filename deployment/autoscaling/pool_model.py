"""What a pool of a given size can do."""

from typing import Protocol

UNREACHABLE_SLACK = 1.1  # a time that no size can keep is asked for within this of the best that there is


class PoolModel(Protocol):
    """Predicts from measured rates whether a pool of a size keeps its part of the SLO."""

    def predicted_s(self, num_replicas: int, requests_per_s: float) -> float:
        """The SLO's quantile of the time that the pool is answerable for."""
        ...

    def holds(self, num_replicas: int, requests_per_s: float) -> bool:
        """Whether the SLO's quantile is within its time."""
        ...

    def rate(self, num_replicas: int) -> float:
        """The most requests per second at which it holds; infinite if a request takes no time."""
        ...


def smallest_size(model: PoolModel, requests_per_s: float, least: int, most: int) -> int:
    """The smallest of the allowed sizes that holds; the largest if none does.

    A larger pool holds whatever a smaller one does, so doubling and halving finds it.
    """
    low, high = least, least
    while high < most and not model.holds(high, requests_per_s):
        low, high = high + 1, min(2 * high, most)
    while low < high:
        middle = (low + high) // 2
        if model.holds(middle, requests_per_s):
            high = middle
        else:
            low = middle + 1
    return high
