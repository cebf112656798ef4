"""What many measurements of one thing were like."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Distribution:
    """Milliseconds; percentiles by linear interpolation."""

    count: int
    mean: float
    std: float
    min: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


def distribution(values_s: Iterable[float]) -> Distribution | None:
    """Of seconds; None if there are none."""
    values = np.fromiter(values_s, float) * 1000
    if not len(values):
        return None
    low, p50, p90, p95, p99, high = np.percentile(values, (0, 50, 90, 95, 99, 100)).tolist()
    return Distribution(len(values), float(values.mean()), float(values.std()), low, p50, p90, p95, p99, high)
