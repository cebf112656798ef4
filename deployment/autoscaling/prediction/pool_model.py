"""Interface of a pool's performance model."""

from typing import Protocol

UNREACHABLE_SLACK = 1.1  # an objective that no size can reach is relaxed to this factor of the best reachable time


class PoolModel(Protocol):
    """Prediction from measured rates whether a pool of a given size holds its part of the SLO."""

    def predicted_s(self, num_replicas: int, requests_per_s: float) -> float:
        """Return the SLO quantile of the pool's latency (TTFT or TPOT)."""
        ...

    def holds(self, num_replicas: int, requests_per_s: float) -> bool:
        """Whether the SLO quantile is within its limit."""
        ...

    def rate(self, num_replicas: int) -> float:
        """Return the highest request rate at which it holds; infinite if a request takes no time."""
        ...


def smallest_size(model: PoolModel, requests_per_s: float, least: int, most: int) -> int:
    """Return the smallest size from `least` to `most` that holds; `most` if none does.

    A larger pool holds whenever a smaller one does, so exponential and binary search find it.
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
