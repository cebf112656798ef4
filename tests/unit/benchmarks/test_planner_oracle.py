"""The bound of the planner's comparison: the fewest GPUs for a rate that is known at every moment."""

from dataclasses import replace

from baton.deployment.autoscaling.settings import SLO
from baton.simulation.twin.deployment_plan import DeploymentPlan
from benchmarks.planner.oracle import oracle_gpus, oracle_run
from benchmarks.planner.scenarios import BLOCK_SIZE, DAY, LARGE
from benchmarks.planner.traffic import bursts, day, steady


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


def test_an_oracles_replicas_take_as_long_to_start() -> None:
    short = replace(DAY, seconds=60.0, rate=bursts(0.5, 4.5, 60.0))
    plan = DeploymentPlan(machine=LARGE, start_s=12.0)
    found = oracle_run(plan, short, short.requests(0, BLOCK_SIZE), SLO(), 24)
    assert [sum(each.gpus.both()) for each in found.sizes] == [2, 3, 3]
    ready = [(each.since_s, sum(each.ready.both())) for each in found.sizes]
    assert ready == [(0.0, 2), (30.0, 2), (42.0, 3)]
    assert len(found.answered) == len(found.records)
