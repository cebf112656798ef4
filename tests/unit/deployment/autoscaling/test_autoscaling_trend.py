"""The rate to expect when a replica that is requested now is ready."""

from collections.abc import Callable
from math import sqrt
from random import Random

import pytest

from baton.deployment.autoscaling.snapshot import Traffic
from baton.deployment.autoscaling.trend import MAX_RISE, Trend

WINDOW_S = 60.0


def expected_rate(rate: Callable[[float], float], seconds: int, ahead_s: float, seed: int | None = None) -> float:
    """Return the expected rate after so many seconds, with the noise of Poisson arrivals if there is a seed."""
    random, trend, noise = Random(seed), Trend(), 0.0
    for second in range(seconds):
        if second % WINDOW_S == 0 and seed is not None:
            noise = random.gauss(0, sqrt(rate(second) / WINDOW_S))
        measured = rate(second) + noise
        trend = trend.after(measured, 1.0)
    return trend.expected(Traffic(window_s=WINDOW_S, requests_per_s=measured), ahead_s).requests_per_s


@pytest.mark.parametrize("start_s", [60.0, 600.0])
def test_a_rate_that_rises_steadily_is_expected_to_go_on(start_s: float) -> None:
    found = expected_rate(lambda second: 10 + second / 1000, 2000, start_s)
    assert found == pytest.approx(12 + start_s / 1000, rel=0.01)


@pytest.mark.parametrize("seed", range(8))
def test_noise_is_no_trend(seed: int) -> None:
    measured = expected_rate(lambda _: 10, 3600, 0.0, seed)
    assert expected_rate(lambda _: 10, 3600, 600.0, seed) == measured


def test_a_falling_rate_is_not_lowered() -> None:
    assert expected_rate(lambda second: 20 - second / 1000, 2000, 600.0) == pytest.approx(18, rel=0.01)


def test_a_jump_is_no_long_rise() -> None:
    assert expected_rate(lambda second: 3 if second < 1000 else 9, 1060, 60.0) < 10
    assert expected_rate(lambda second: 3 if second < 1000 else 9, 1200, 3600.0) == 9 * (1 + MAX_RISE)


def test_the_clock_does_not_matter_to_the_precision() -> None:
    trend = Trend()
    for second in range(10**5):
        trend = trend.after(10 + second / 10**5, 1.0)
    slope = (trend.t_rate * trend.weight - trend.t * trend.rate) / (trend.tt * trend.weight - trend.t**2)
    assert slope == pytest.approx(1e-5)
