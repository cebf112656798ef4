"""The bound of the planner's comparison: the fewest GPUs for a rate that is known at every moment."""

from dataclasses import replace

from baton.deployment.autoscaling.settings import SLO
from benchmarks.planner.oracle import oracle_gpus
from benchmarks.planner.scenarios import DAY, LARGE
from benchmarks.planner.traffic import day, steady


def needed(low: float, high: float) -> tuple[float, float]:
    """Return the bound for steady rates."""
    first, second = (oracle_gpus(replace(DAY, rate=steady(rate)), LARGE.spec, SLO(), 24) for rate in (low, high))
    return first, second


def test_a_low_rate_needs_a_replica_of_each_kind() -> None:
    low, high = needed(0.5, 4.5)
    assert low == 2
    assert high == 3


def test_a_day_needs_less_than_its_peak_and_more_than_its_night() -> None:
    low, high = needed(0.5, 4.5)
    assert low < oracle_gpus(DAY, LARGE.spec, SLO(), 24) < 0.8 * high
    larger = replace(DAY, rate=day(10, DAY.seconds))
    peak, _ = needed(18.0, 18.0)
    assert oracle_gpus(larger, LARGE.spec, SLO(), 24) < 0.7 * peak, "whole GPUs matter less for more of them"
