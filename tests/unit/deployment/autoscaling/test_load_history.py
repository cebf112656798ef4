"""The load since it last changed: seen soon after a jump, and over several windows while it is steady."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from baton.deployment.autoscaling.load_history import LONGEST_S, LoadHistory, is_change, jump_of, merged
from baton.deployment.autoscaling.moments import Moments
from baton.deployment.autoscaling.snapshot import Arrivals, Traffic
from tests.unit.deployment.autoscaling_snapshots import SETTINGS, Planner, exponential, pool, sizes, snapshot, traffic

WINDOW_S = 60
RECENT_S = (10, 20, 40)


def observed(nums: list[int]) -> Traffic:
    """Return the traffic of the last minute, from the arrivals of each second so far."""
    recent = tuple(Arrivals(float(each_s), sum(nums[-each_s:])) for each_s in RECENT_S)
    return traffic(sum(nums[-WINDOW_S:]) / WINDOW_S, window_s=float(WINDOW_S), recent=recent)


def arrivals(random: Random, rate: float) -> int:
    """Return the arrivals of a second of a Poisson process."""
    num, at_s = 0, random.expovariate(rate)
    while at_s < 1:
        num, at_s = num + 1, at_s + random.expovariate(rate)
    return num


def loads(rates: list[float], seed: int) -> Iterator[tuple[int, LoadHistory, Traffic]]:
    """Yield the second, the history and the load after the first minute of Poisson arrivals at these rates."""
    random, history, nums = Random(seed), LoadHistory(), list[int]()
    for second, rate in enumerate(rates):
        nums.append(arrivals(random, rate))
        if second >= WINDOW_S:
            seen = observed(nums)
            history = history.after(float(second), seen)
            yield second, history, history.load(float(second), seen)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("low", [1.0, 4.0])
def test_a_jump_is_seen_within_seconds_and_stays(low: float, seed: int) -> None:
    at_s, high = 300, 3 * low
    rates = [low] * at_s + [high] * 120
    found = {second: load.requests_per_s for second, _, load in loads(rates, seed)}
    before = [found[second] for second in range(120, at_s)]
    assert max(before) < 2 * low, "no jump while the load is steady"
    seen_s = next(second - at_s for second in range(at_s, at_s + 60) if found[second] > 0.75 * high)
    assert seen_s <= (30 if low < 2 else 22)  # by a window of a minute: after 40 s
    assert min(found[second] for second in range(at_s + 25, at_s + 120)) > 0.7 * high


@pytest.mark.parametrize("seed", range(3))
def test_a_burst_of_seconds_never_counts(seed: int) -> None:
    """It has ended before a replica has started; the window counts it as a part of a minute."""
    at_s = 300
    rates = [3.0] * at_s + [30.0] * 5 + [3.0] * 120
    found = {second: load.requests_per_s for second, _, load in loads(rates, seed)}
    longest = run = 0  # seconds in a row with more than the window's mean
    for second in range(at_s, at_s + 120):
        run = run + 1 if found[second] > 7 else 0
        longest = max(longest, run)
    assert longest < SETTINGS.upscale_delay_s


def test_neither_a_fall_nor_a_new_router_is_a_jump() -> None:
    """A router that has just started reports a window that grows as fast as the time since then."""
    history, began_s = LoadHistory(), 86_400.3
    for second in range(400):
        lived_s = second - 199 if second >= 200 else second + 100
        seen = traffic(5.0 if second < 200 else 2.0, window_s=min(59.6, lived_s + second % 3 * 0.1))
        history = history.after(began_s + second, seen)
        assert not history.has_jumped(began_s + second, seen)
    assert history.changed_s > began_s + 100


def test_a_steady_load_is_measured_over_five_minutes() -> None:
    errors, single = list[float](), list[float]()
    for seed in range(5):
        for second, _, load in loads([3.0] * 900, seed):
            if second >= 420 and second % 60 == 0:
                errors.append((load.requests_per_s / 3 - 1) ** 2)
                single.append(1 / load.window_s)
    assert max(single) <= 1 / (LONGEST_S - WINDOW_S), "almost always the longest time counts"
    assert sum(errors) / len(errors) < 1.5 / (3 * (LONGEST_S - WINDOW_S))


def test_a_fall_is_seen_within_a_window() -> None:
    rates = [9.0] * 400 + [3.0] * 90
    found = {second: load.requests_per_s for second, _, load in loads(rates, 0)}
    assert found[465] < 4


def test_longer_prompts_are_a_change_though_the_rate_stays() -> None:
    before = traffic(5.0, prompt=1000)
    assert not is_change(traffic(5.0, prompt=1050), before)
    assert is_change(traffic(5.0, prompt=2000), before)
    assert not is_change(traffic(5.0, uncached_tokens=Moments(2000.0, 300 * 2000.0**2)), before), "by a single prompt"


def test_few_requests_are_no_jump() -> None:
    silent = traffic(0.05, recent=(Arrivals(10.0, 3),))
    assert jump_of(silent) is None
    assert jump_of(traffic(1.0, recent=(Arrivals(10.0, 40),))) == Arrivals(10.0, 40)


def test_arrivals_in_clusters_are_less_soon_a_jump() -> None:
    recent = (Arrivals(10.0, 28),)
    assert jump_of(traffic(1.0, recent=recent)) is not None
    assert jump_of(traffic(1.0, recent=recent, arrival_cv2=4.0)) is None


def test_windows_are_merged_by_requests() -> None:
    first = traffic(1.0, prompt=1000, num_ended=30, output_tokens=exponential(50))
    second = traffic(3.0, prompt=2000, num_ended=90, output_tokens=exponential(100))
    both = merged([first, second])
    assert both.window_s == 120
    assert both.requests_per_s == 2
    assert both.prompt_tokens.mean == 1750
    assert both.output_tokens.mean == 87.5
    assert both.num_ended == second.num_ended


def test_silence_has_no_moments() -> None:
    silent = traffic(0.0, prompt=0, output=0)
    assert merged([silent, silent]) == traffic(0.0, prompt=0, output=0, window_s=120.0)


def test_routers_that_do_not_count_recent_arrivals_are_measured_by_the_window() -> None:
    history = LoadHistory()
    for second in range(0, 600, 10):
        load = history.load(float(second), traffic(4.0))
        history = history.after(float(second), traffic(4.0))
    assert load.requests_per_s == 4
    assert load.window_s >= LONGEST_S - WINDOW_S


def after_a_turn(recent: tuple[Arrivals, ...]) -> tuple[int, int]:
    """Return the sizes 20 s after the rate of a pool that has just shrunk tripled for 10 s."""
    planner = Planner(replace(SETTINGS, downscale_delay_s=10.0))
    large = sizes(planner.plan_for(60, snapshot(load=traffic(10.0))))
    ready = {"prefills": pool(large[0]), "decodes": pool(large[1])}
    small = sizes(planner.plan_for(120, snapshot(61.0, load=traffic(3.0), **ready)))
    assert small[0] < large[0]
    ready = {"prefills": pool(small[0]), "decodes": pool(small[1])}
    return sizes(planner.plan_for(20, snapshot(182.0, load=traffic(4.0, recent=recent), **ready)))


def test_a_pool_that_has_just_shrunk_grows_again_at_a_jump() -> None:
    held, jumped = after_a_turn(()), after_a_turn((Arrivals(10.0, 90),))
    assert jumped[0] > held[0]
