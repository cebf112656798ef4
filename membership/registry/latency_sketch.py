"""Counts of times in bins that grow by a constant factor: any quantile of them, within 5% of itself.

As DDSketch has it (Masson, Rim and Lee, VLDB 2019): such counts from several places can be added up, which quantiles
cannot.
"""

from collections.abc import Mapping
from math import ceil, log

GROWTH = 1.1
LEAST_S, MOST_S = 1e-6, 1e5  # times beyond are taken for these: so there are 267 bins at most
LOG_GROWTH = log(GROWTH)


def bin_of(time_s: float) -> int:
    """The number of the bin that holds times above `GROWTH ** (number - 1)`, up to `GROWTH ** number`."""
    return ceil(log(min(max(time_s, LEAST_S), MOST_S)) / LOG_GROWTH)


def quantile_of_bins(counts: Mapping[int, int], quantile: float) -> float:
    """The time that this share of the times is within; 0 if there are none."""
    rank = ceil(quantile * sum(counts.values()))
    passed = 0
    for number in sorted(counts):
        passed += counts[number]
        if passed >= rank > 0:
            return float(2 * GROWTH**number / (1 + GROWTH))  # as far from either end of the bin, in proportion
    return 0.0
