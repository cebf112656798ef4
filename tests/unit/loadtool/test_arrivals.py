"""Sending times of requests."""

from itertools import islice

import numpy as np
import pytest

from baton.loadtool.arrivals import MaxConcurrency, RequestRate, TraceTimes
from baton.loadtool.errors import SettingError


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_mean_and_variance_of_a_gamma_distribution(burstiness: float) -> None:
    times = np.array(list(islice(RequestRate(8.0, burstiness).due_times(3), 40_000)))
    gaps = np.diff(times, prepend=0.0)
    assert (gaps >= 0).all()
    assert gaps.mean() == pytest.approx(1 / 8, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.03)


def test_equal_seeds_give_equal_times() -> None:
    rate = RequestRate(3.0)
    first, again, other = (list(islice(rate.due_times(seed), 2000)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_an_infinite_rate_sends_all_at_once() -> None:
    assert list(islice(RequestRate(float("inf")).due_times(0), 5)) == [0.0] * 5


def test_impossible_loads_are_refused() -> None:
    for rate in (0.0, -1.0, float("nan")):
        with pytest.raises(SettingError, match="--request-rate"):
            RequestRate(rate)
    with pytest.raises(SettingError, match="--burstiness"):
        RequestRate(1.0, 0.0)
    with pytest.raises(SettingError, match="--time-scale"):
        TraceTimes(0.0)
    with pytest.raises(SettingError, match="--max-concurrency"):
        MaxConcurrency(0)


def test_loads_have_labels() -> None:
    loads = (RequestRate(2.5), TraceTimes(), TraceTimes(0.5), MaxConcurrency(8))
    assert [load.label for load in loads] == ["2.5 req/s", "trace", "trace x 0.5", "8 concurrent"]
