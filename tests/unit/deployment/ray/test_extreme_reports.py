"""Reports with extreme values inside their bounds: the plan neither fails nor stops following the load."""

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.autoscaling.input_check import decode_fault, prefill_fault, snapshot_fault
from baton.deployment.autoscaling.plan import plan_pools
from baton.deployment.autoscaling.settings import ScalingSettings
from baton.deployment.autoscaling.state import ScalingState
from baton.deployment.ray.observed_pools import ObservedPools
from baton.deployment.ray.pool_progress import PoolProgress
from baton.membership.registry.router_report import (
    LEAST_S,
    MAX_BLOCK_SIZE,
    MAX_COUNT,
    MAX_LENGTH,
    MAX_MEASURED,
    MAX_S,
    MAX_SAMPLES,
    MAX_SUM,
    MAX_TOKENS,
    MAX_WINDOW_S,
    MIN_RATE,
    MIN_STEP_S,
    MIN_WINDOW_S,
    MOST_S,
    RouterReport,
    SampleSums,
    TrafficReport,
    WorkerReport,
    bin_of,
    decode_report,
    encode_report,
)
from tests.unit.membership.registry.router_reports import router_report, traffic_report, worker_report

BUDGET = 16
SETTINGS = ScalingSettings(budget_gpus=BUDGET, upscale_delay_s=0.0, downscale_delay_s=0.0)
PROGRESS = ByPool(PoolProgress(), PoolProgress())


def counts(most: int) -> st.SearchStrategy[int]:
    return st.one_of(st.sampled_from([0, min(1, most), most]), st.integers(0, most))


def amounts(least: float, most: float) -> st.SearchStrategy[float]:
    return st.one_of(
        st.sampled_from([least, 5e-324, most]).filter(lambda value: value >= least), st.floats(least, most)
    )


def known(least: float) -> st.SearchStrategy[float]:
    return st.one_of(st.just(0.0), amounts(least, MAX_MEASURED))


@st.composite
def lengths(draw: st.DrawFn) -> SampleSums:
    num = draw(counts(MAX_SAMPLES))
    total = float(draw(counts(num * MAX_LENGTH)))
    return SampleSums(num, total, min(MAX_SUM, draw(st.floats(total, total * MAX_LENGTH))))


GAPS = st.builds(SampleSums, counts(MAX_SAMPLES), amounts(0.0, MAX_SUM), amounts(0.0, MAX_SUM))
BINS = st.sampled_from([bin_of(LEAST_S), 0, bin_of(MOST_S)])
TRAFFIC = st.builds(
    TrafficReport,
    window_s=amounts(MIN_WINDOW_S, MAX_WINDOW_S),
    num_requests=counts(MAX_SAMPLES),
    gaps_s=GAPS,
    prompt_tokens=lengths(),
    uncached_tokens=lengths(),
    remote_tokens=st.none() | lengths(),
    output_tokens=lengths(),
    asked_tokens=lengths(),
    num_generated_tokens=st.none() | counts(MAX_TOKENS),
    num_waiting=counts(MAX_COUNT),
    oldest_wait_s=amounts(0.0, MAX_S),
)
WORKERS = st.builds(
    WorkerReport,
    worker_id=st.sampled_from("abc"),
    incarnation=st.sampled_from("abc"),
    role=st.sampled_from(["prefill", "decode"]),
    draining=st.booleans(),
    ready_for_s=amounts(0.0, MAX_S),
    num_running=counts(MAX_COUNT),
    num_waiting=counts(MAX_COUNT),
    num_queued_tokens=counts(MAX_TOKENS),
    num_blocks=counts(MAX_COUNT),
    num_free_blocks=counts(MAX_COUNT),
    block_size=counts(MAX_BLOCK_SIZE),
    max_num_seqs=counts(MAX_COUNT),
    max_num_batched_tokens=counts(MAX_TOKENS),
    prefill_tokens_per_s=known(MIN_RATE),
    decode_step_s=known(MIN_STEP_S),
    decode_sequence_s=known(MIN_STEP_S),
    latency=st.dictionaries(BINS, counts(MAX_SAMPLES), max_size=2),
)
REPORTS = st.builds(
    RouterReport,
    router_id=st.sampled_from("ab"),
    model=st.just("m"),
    time_s=amounts(0.0, MAX_S),
    traffic=TRAFFIC,
    workers=st.lists(WORKERS, max_size=3).map(tuple),
)


class Plan:
    """A plan that follows reports, as Ray Serve's policy does."""

    def __init__(self) -> None:
        self._state: ScalingState | None = None
        self._now_s = 0.0
        self.faults: set[str] = set()

    def follow(self, *reports: RouterReport) -> tuple[int, int]:
        """Return the target sizes after these reports, a second later."""
        self._now_s += 1.0
        pools = ObservedPools.of([decode_report(encode_report(each)) for each in reports])
        snapshot = pools.snapshot(PROGRESS, SETTINGS.slo.quantile, self._now_s)
        assert snapshot_fault(snapshot) is None
        self.faults = {fault for fault in (prefill_fault(snapshot), decode_fault(snapshot)) if fault is not None}
        decision, self._state = plan_pools(snapshot, self._state, SETTINGS)
        sizes = decision.prefill.target, decision.decode.target
        assert all(1 <= size <= BUDGET for size in sizes)
        assert sum(sizes) <= BUDGET
        return sizes


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(REPORTS, max_size=3), min_size=1, max_size=3))
def test_any_valid_reports_give_sizes_within_the_budget(seen: list[list[RouterReport]]) -> None:
    """Measurements are invalid only as long as a pool has measured nothing."""
    plan = Plan()
    for reports in seen:
        plan.follow(*reports)
        for fault in plan.faults:
            assert fault in (
                "no request has ended yet",
                "the requests' lengths are not known yet",
                "its prompt tokens per second are 0.0",
            ) or fault.startswith("its step takes 0.0 s"), fault


WORKER_EXTREMES: list[dict[str, Any]] = [
    {"num_queued_tokens": MAX_TOKENS, "num_waiting": MAX_COUNT, "num_running": MAX_COUNT},
    {"num_blocks": MAX_COUNT, "num_free_blocks": 0, "block_size": MAX_BLOCK_SIZE},
    {"num_blocks": 0, "num_free_blocks": MAX_COUNT, "block_size": MAX_BLOCK_SIZE},
    {"prefill_tokens_per_s": MIN_RATE, "decode_step_s": MAX_MEASURED, "decode_sequence_s": MAX_MEASURED},
    {"prefill_tokens_per_s": MAX_MEASURED, "decode_step_s": MIN_STEP_S, "decode_sequence_s": MIN_STEP_S},
    {"latency": {bin_of(MOST_S): MAX_SAMPLES}, "ready_for_s": MAX_S},
    {"max_num_seqs": MAX_COUNT, "max_num_batched_tokens": MAX_TOKENS},
]
TRAFFIC_EXTREMES: list[dict[str, Any]] = [
    {"num_waiting": MAX_COUNT, "oldest_wait_s": MAX_S},
    {"window_s": MIN_WINDOW_S, "num_requests": MAX_SAMPLES},
    {"window_s": MAX_WINDOW_S, "num_requests": 1},
    {"gaps_s": SampleSums(MAX_SAMPLES, 5e-324, MAX_SUM)},
    {"gaps_s": SampleSums(MAX_SAMPLES, MAX_SUM, 0.0)},
    {"prompt_tokens": SampleSums(MAX_SAMPLES, 1.0, 1.0)},
    {"output_tokens": SampleSums(1, float(MAX_LENGTH), float(MAX_LENGTH**2))},
    {"output_tokens": SampleSums(MAX_SAMPLES, 1.0, float(MAX_LENGTH)), "num_generated_tokens": MAX_TOKENS},
]


def reports(worker: dict[str, Any], traffic: dict[str, Any]) -> RouterReport:
    workers = worker_report("prefill-0", "prefill", **worker), worker_report(**worker)
    return router_report(*workers, traffic=traffic_report(**{"num_requests": 1200, **traffic}))


@pytest.mark.parametrize("worker", WORKER_EXTREMES)
@pytest.mark.parametrize("traffic", TRAFFIC_EXTREMES)
def test_no_extreme_value_is_a_fault(worker: dict[str, Any], traffic: dict[str, Any]) -> None:
    """For a fault, a pool would keep its size."""
    plan = Plan()
    for _ in range(3):
        plan.follow(reports(worker, traffic))
        assert plan.faults == set()


@pytest.mark.parametrize(
    "extreme", [*(reports(each, {}) for each in WORKER_EXTREMES), *(reports({}, each) for each in TRAFFIC_EXTREMES)]
)
def test_pools_follow_the_load_again_after_extreme_reports(extreme: RouterReport) -> None:
    plan = Plan()
    for _ in range(3):
        plan.follow(extreme)
    assert sizes_in_the_end(plan) == undisturbed_sizes()


def sizes_in_the_end(plan: Plan) -> tuple[int, int]:
    usual = reports({}, {})
    return [plan.follow(usual) for _ in range(600)][-1]


@cache
def undisturbed_sizes() -> tuple[int, int]:
    return sizes_in_the_end(Plan())
