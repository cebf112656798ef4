"""Queueing formulas, compared with textbooks."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.deployment.autoscaling.moments import Moments
from baton.deployment.autoscaling.prediction.queueing import erlang_c, quantile_of, queue_wait
from tests.unit.deployment.autoscaling_snapshots import exponential


@pytest.mark.parametrize(
    ("num_servers", "load", "probability"),
    [(1, 0.5, 0.5), (2, 1.0, 1 / 3), (3, 2.0, 4 / 9), (10, 8.0, 0.40918), (5, 0.0, 0.0), (4, 4.0, 1.0), (2, 3.0, 1.0)],
)
def test_erlang_c_matches_tables(num_servers: int, load: float, probability: float) -> None:
    assert erlang_c(num_servers, load) == pytest.approx(probability, rel=1e-4)


def test_erlang_c_takes_any_number_of_servers() -> None:
    assert erlang_c(10_000, 9_990.0) == pytest.approx(0.8805, rel=0.001)
    assert erlang_c(10_000, 100.0) == 0.0


def test_the_wait_at_one_exponential_server_matches_textbooks() -> None:
    wait = queue_wait(1, 0.8, exponential(1.0), 1.0)
    assert wait is not None
    assert wait.mean == pytest.approx(0.8 / 0.2)
    assert wait.probability == pytest.approx(0.8)
    assert wait.variance == pytest.approx(25 * (2 - 0.8) * 0.8)  # rho (2 - rho) / (mu - lambda)^2


def test_constant_service_times_halve_the_wait() -> None:
    varied, even = queue_wait(3, 2.0, exponential(1.0), 1.0), queue_wait(3, 2.0, Moments(1.0, 1.0), 1.0)
    assert varied is not None
    assert even is not None
    assert even.mean == pytest.approx(varied.mean / 2)  # Pollaczek and Khinchine, for one server


def test_the_mean_wait_of_an_overloaded_queue_is_infinite() -> None:
    assert queue_wait(2, 2.0, exponential(1.0), 1.0) is None


def test_the_quantile_is_that_of_a_log_normal_variable() -> None:
    mean, variance = math.exp(0.5), (math.e - 1) * math.e  # mu 0, sigma 1
    assert quantile_of(mean, variance, 0.95) == pytest.approx(math.exp(1.6449), rel=1e-3)
    assert quantile_of(2.0, 0.0, 0.95) == 2.0
    assert quantile_of(0.0, 0.0, 0.95) == 0.0


@given(st.floats(0.01, 10), st.floats(0, 100), st.floats(0, 100))
def test_more_variance_never_lowers_the_quantile(mean: float, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert quantile_of(mean, low, 0.95) <= quantile_of(mean, high, 0.95) * (1 + 1e-9)
