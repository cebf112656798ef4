"""Traffic of several routers, merged."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.deployment.autoscaling.moments import Moments
from baton.deployment.autoscaling.snapshot import Traffic
from baton.deployment.ray.observed_traffic import gaps_cv2, merged_traffic
from baton.membership.registry.router_report import ArrivalCount, SampleSums
from tests.unit.membership.registry.router_reports import sums, traffic_report

LENGTHS = st.lists(st.lists(st.integers(1, 10_000), max_size=20), min_size=1, max_size=4)


def sums_of(values: list[int]) -> SampleSums:
    return SampleSums(len(values), sum(values), sum(value * value for value in values))


@given(LENGTHS)
def test_merged_lengths_equal_those_of_one_router(by_router: list[list[int]]) -> None:
    reports = [traffic_report(60, prompt_tokens=sums_of(lengths)) for lengths in by_router]
    everything = Moments.of(float(length) for lengths in by_router for length in lengths)
    merged = merged_traffic(reports)
    assert merged.prompt_tokens.mean == pytest.approx(everything.mean)
    assert merged.prompt_tokens.second == pytest.approx(everything.second)
    assert (merged.requests_per_s, merged.window_s) == (pytest.approx(len(reports)), pytest.approx(60))


def test_a_new_router_counts_with_its_own_rate() -> None:
    merged = merged_traffic([traffic_report(600), traffic_report(20, window_s=2.0)])
    assert merged.requests_per_s == 20.0
    assert merged.window_s * merged.requests_per_s == pytest.approx(620)  # only the requests so far


def test_recent_arrivals_are_added_up_as_far_as_all_routers_have_them() -> None:
    old = traffic_report(600, recent=(ArrivalCount(9.5, 95), ArrivalCount(19.5, 195)))
    new = traffic_report(100, recent=(ArrivalCount(9.0, 90),))
    (seen,) = merged_traffic([old, new]).recent
    assert (seen.num_requests, seen.num_requests / seen.window_s) == (185, pytest.approx(20.0))
    assert merged_traffic([old, traffic_report()]).recent == ()
    (silent,) = merged_traffic([traffic_report(1, recent=(ArrivalCount(9.5, 0),))]).recent
    assert (silent.num_requests, silent.window_s) == (0, 9.5)


def test_variations_are_weighted_by_rate() -> None:
    regular, bursty = traffic_report(900), traffic_report(300, gaps_s=sums(0.2, 300, cv2=4.0))
    assert merged_traffic([regular, bursty]).arrival_cv2 == pytest.approx(1.0)
    assert merged_traffic([regular]).arrival_cv2 == pytest.approx(0.0)
    assert gaps_cv2(sums(1.0, 10, cv2=9.0)) == 1.0  # too few to differ from Poisson
    assert gaps_cv2(SampleSums(100, 0.0, 0.0)) == 1.0


def test_no_traffic_has_zero_rates() -> None:
    assert merged_traffic([]) == Traffic(window_s=0.0)
    assert merged_traffic([traffic_report(0), traffic_report(0, window_s=5.0)]) == Traffic(window_s=60.0)


def test_locally_prefilled_prompts_are_counted_separately() -> None:
    local, remote = traffic_report(600, remote_tokens=sums(0.0, 0)), traffic_report(200, remote_tokens=sums(900.0, 200))
    merged = merged_traffic([local, remote])
    assert merged.remote_share == pytest.approx(200 / 800)
    assert merged.remote_tokens is not None
    assert merged.remote_tokens.mean == pytest.approx(900.0)
    # A router of an earlier version does not count them.
    merged = merged_traffic([traffic_report(600), remote])
    assert (merged.remote_share, merged.remote_tokens) == (1.0, None)


def test_running_outputs_raise_the_mean_length() -> None:
    begun = traffic_report(600, output_tokens=sums(50.0, 20), num_generated_tokens=3000)
    settled = traffic_report(600, output_tokens=sums(100.0, 80, cv2=1.0), num_generated_tokens=9000)
    merged = merged_traffic([begun, settled])
    mean = (12_000 + 90) / 101  # with one output of the mean length of those that have ended
    assert merged.output_tokens.mean == pytest.approx(mean)
    limited = replace(begun, asked_tokens=sums(90.0, 100)), replace(settled, asked_tokens=sums(130.0, 300))
    assert merged_traffic(limited).output_tokens.mean == pytest.approx(mean)
    assert merged_traffic(limited[:1]).output_tokens.mean == pytest.approx(90.0)  # the maximum
    # A router of an earlier version does not count tokens.
    merged = merged_traffic([begun, traffic_report(600, output_tokens=sums(100.0, 80))])
    assert merged.output_tokens.mean == pytest.approx(90.0)
