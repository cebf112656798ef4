"""The share of the prompts that decode workers are planned to compute."""

from dataclasses import replace
from math import inf

import pytest

from baton.deployment.autoscaling.budget import Budget
from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.autoscaling.moments import Moments
from baton.deployment.autoscaling.prediction.local_prompts import LocalPrompts
from baton.deployment.autoscaling.prediction.pools_model import PoolsModel
from baton.deployment.autoscaling.prompt_split import RECOVERY_S, SHARES, LocalLimit, best_model, measured_share
from baton.deployment.autoscaling.snapshot import PoolsSnapshot, ReplicaLatency, Traffic
from tests.unit.deployment.autoscaling_snapshots import SETTINGS, Planner, exponential, pool, sizes, snapshot, traffic

FACTORS = ByPool(1.0, 1.0)
BUDGET = Budget(64, SETTINGS.limits)


def model(seen: PoolsSnapshot, share: float) -> PoolsModel:
    return PoolsModel.of(seen, SETTINGS, FACTORS, share)


def num_gpus(seen: PoolsSnapshot, share: float) -> int:
    return sum(model(seen, share).sizes(seen.traffic.requests_per_s, BUDGET).both())


def best(seen: PoolsSnapshot, present: float = 0.0, budget: Budget = BUDGET) -> PoolsModel:
    return best_model(lambda share: model(seen, share), present, 1.0, seen.traffic.requests_per_s, budget)


@pytest.mark.parametrize(
    "load", [traffic(30.0, prompt=500, output=40), traffic(40.0), traffic(6.0, prompt=1000, output=600)]
)
def test_the_chosen_share_needs_the_fewest_gpus(load: Traffic) -> None:
    seen = snapshot(load=load)
    assert num_gpus(seen, best(seen).local_share) == min(num_gpus(seen, share) for share in SHARES)


def test_idle_decode_time_is_used_for_prompts() -> None:
    """Nine requests a second of 1,000 + 20 tokens keep neither pool busy, so decode workers have time for prompts."""
    seen = snapshot(load=traffic(9.0, prompt=1000, output=20))
    assert num_gpus(seen, 0.0) == 3
    assert num_gpus(seen, best(seen).local_share) == 2
    assert best(seen).local_share > 0


def test_more_local_prompts_never_need_fewer_decode_or_more_prefill_workers() -> None:
    seen = snapshot(load=traffic(40.0))
    found = [model(seen, share).sizes(40.0, BUDGET) for share in SHARES]
    assert [each.prefill for each in found] == sorted((each.prefill for each in found), reverse=True)
    assert [each.decode for each in found] == sorted(each.decode for each in found)
    assert found[0].prefill > found[-1].prefill
    assert found[0].decode < found[-1].decode


def test_the_present_share_stays_unless_another_is_clearly_better() -> None:
    seen = snapshot(load=traffic(40.0))
    chosen = best(seen).local_share
    assert best(seen, present=chosen).local_share == chosen
    near = replace(seen, traffic=replace(seen.traffic, requests_per_s=40.4))
    assert num_gpus(near, chosen) == num_gpus(near, best(near, present=chosen).local_share)


def test_beyond_the_budget_the_share_with_the_most_goodput_is_chosen() -> None:
    seen, few = snapshot(load=traffic(80.0, prompt=1000, output=20)), Budget(8, SETTINGS.limits)

    def is_enough(share: float, rate: float) -> bool:
        pools = model(seen, share)
        found = pools.sizes(rate, few)
        return few.cost(found) <= few.gpus and pools.holds(found, rate)

    most = {share: max(rate for rate in range(1, 80) if is_enough(share, rate)) for share in SHARES}
    assert most[0.0] > 1.3 * most[0.95]
    assert best(seen, 0.95, few).local_share == 0.0


def test_local_prompts_take_a_workers_time() -> None:
    prompts = LocalPrompts(share=0.5, tokens=exponential(1000), token_s=1e-4)
    assert prompts.busy(1, 10.0) == pytest.approx(0.5)
    assert prompts.busy(2, 10.0) == pytest.approx(0.25)
    assert prompts.ttft_s(1, 21.0, 0.01, 0.95) == inf
    assert prompts.ttft_s(2, 10.0, 0.01, 0.95) < prompts.ttft_s(1, 10.0, 0.01, 0.95) < inf
    assert LocalPrompts().ttft_s(1, 10.0, 0.01, 0.95) == 0.0
    # Ten prompts are expected during an output; each has a root mean square of 0.141 s.
    assert prompts.delay_deviation_s(1, 10.0, 2.0) == pytest.approx((10 * 2 * 0.1**2) ** 0.5)


def test_measured_prompts_of_either_pool_are_used_for_what_is_measured() -> None:
    """A quarter of 80 requests has 2,000 tokens and goes to prefill workers; the others have 100."""
    tokens = Moments(0.25 * 2000 + 0.75 * 100, 0.25 * 2 * 2000**2 + 0.75 * 100**2)
    load = traffic(80.0, uncached_tokens=tokens, remote_share=0.25, remote_tokens=exponential(2000))
    found = PoolsModel.as_measured(snapshot(load=load), SETTINGS, FACTORS)
    alone = PoolsModel.as_measured(snapshot(load=traffic(20.0, remote_share=1.0)), SETTINGS, FACTORS)
    assert found.prefill.predicted_s(8, 80.0) == pytest.approx(alone.prefill.predicted_s(8, 20.0))
    assert (found.decode.prompts.share, alone.decode.prompts.share) == (0.75, 0.0)
    assert found.decode.prompts.tokens.mean == pytest.approx(100)
    assert found.decode.prompts.tokens.variance == pytest.approx(0.0, abs=1e-6)


def test_pools_of_the_chosen_sizes_stay() -> None:
    load = shared_out(9.0, 0.5)
    planner = Planner()
    decision = planner.plan_for(20, snapshot(load=load, prefills=pool(1), decodes=pool(1)))
    assert sizes(decision) == (1, 1)
    assert planner.state is not None
    assert planner.state.local_share == best(snapshot(load=load)).local_share > 0


def shared_out(rate: float, remote_share: float) -> Traffic:
    """Return requests of 1,000 + 20 tokens, whose prompts are computed by both pools."""
    return traffic(rate, prompt=1000, output=20, remote_share=remote_share, remote_tokens=exponential(1000))


@pytest.mark.parametrize(("remote_share", "most"), [(1.0, 0.1), (0.9, 0.3), (0.5, 1.0)])
def test_the_share_grows_from_the_measured_one(remote_share: float, most: float) -> None:
    """A router that hands all prompts over would leave a small prefill pool with a queue."""
    load = shared_out(9.0, remote_share)
    assert LocalLimit().most(load) == pytest.approx(most)
    planner = Planner()
    planner.plan_for(20, snapshot(load=load, prefills=pool(1), decodes=pool(1)))
    assert planner.state is not None
    assert planner.state.local_share <= most


def test_the_measured_share_is_that_of_the_tokens() -> None:
    """Half of the prompts are short and computed by decode workers, but nearly all tokens by prefill workers."""
    load = traffic(9.0, uncached_tokens=exponential(4005), remote_share=0.5, remote_tokens=exponential(8000))
    assert measured_share(load) == pytest.approx(1 - 4000 / 4005)
    assert measured_share(traffic(9.0)) == 0.0  # not reported
    assert LocalLimit().most(traffic(9.0)) == 0.0


def test_late_first_tokens_limit_the_share_to_the_measured_one_for_hours() -> None:
    load = shared_out(9.0, 0.75)
    limit = LocalLimit().after(0.25, is_late=True, dt_s=1.0)
    assert limit.most(load) == pytest.approx(0.25)
    for _ in range(3600):
        limit = limit.after(0.25, is_late=False, dt_s=1.0)
    assert limit.most(load) == pytest.approx(0.25 + 3600 / RECOVERY_S)
    assert limit.after(0.25, is_late=False, dt_s=RECOVERY_S) == LocalLimit()


def test_prefill_grows_if_the_router_hands_over_more_than_planned() -> None:
    """One prefill worker would be enough if the router left two of five prompts to decode workers."""
    late = ReplicaLatency(1000.0, 200, 2.5)
    load = traffic(3.0, remote_share=0.75, remote_tokens=exponential(2000))
    planner = Planner()
    seen = snapshot(load=load, prefills=pool(1, latencies=(late,)), decodes=pool(2))
    planner.plan_for(60, seen)
    assert planner.state is not None
    assert (planner.state.local_share, planner.state.wanted.prefill) == (0.4, 1)
    planner.plan_for(60, replace(seen, now_s=61.0))
    assert planner.state.local_share < 0.25
    assert planner.state.local_limit.most(load) < 0.26
    assert planner.state.wanted.prefill > 1
