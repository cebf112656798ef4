"""Quantiles of binned times."""

from collections import Counter
from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from baton.membership.registry.router_report import LEAST_S, MOST_S, bin_of, quantile_of_bins

TIMES = st.lists(st.floats(LEAST_S, MOST_S), min_size=1, max_size=200)


@given(TIMES, st.floats(0.01, 1.0))
def test_a_quantile_is_within_five_percent(times: list[float], quantile: float) -> None:
    exact = sorted(times)[ceil(quantile * len(times)) - 1]
    found = quantile_of_bins(Counter(map(bin_of, times)), quantile)
    assert abs(found - exact) <= 0.05 * exact


@given(TIMES, TIMES)
def test_bins_add_up(first: list[float], second: list[float]) -> None:
    together = Counter(map(bin_of, first)) + Counter(map(bin_of, second))
    assert together == Counter(map(bin_of, first + second))


def test_invalid_times_are_in_the_outer_bins() -> None:
    assert bin_of(0.0) == bin_of(-1.0) == bin_of(LEAST_S)
    assert bin_of(1e9) == bin_of(MOST_S)
    assert quantile_of_bins({}, 0.95) == 0.0
