"""The real autoscaler under a part of Mooncake's conversation trace, in virtual time."""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

import pytest

from baton.deployment.autoscaling.settings import SLO, ScalingSettings
from baton.deployment.autoscaling.snapshot import DecodeSnapshot
from baton.loadtool.lengths import Lengths
from baton.simulation.study.reader import granule, read_trace
from baton.simulation.study.search import SplitSearch
from baton.simulation.twin.deployment_plan import DeploymentPlan
from baton.simulation.twin.gpu_meter import Sizes
from baton.simulation.twin.machine import Machine
from baton.simulation.twin.outcome import Outcome
from baton.simulation.twin.trace_request import TraceRequest
from baton.simulation.twin.twin import Twin, simulate
from tests.marks import slow_case
from tests.unit.deployment.size_turns import most_turns, turns

TRACE = Path(__file__).parents[4] / "benchmarks" / "data" / "mooncake_conversation.csv"
SLO_ = SLO(ttft_s=4.0, tpot_s=0.05)
NUM_GPUS = 20
BASE = DeploymentPlan(machine=Machine().with_block_size(granule(Lengths())), start_s=30.0)
SCALING = ScalingSettings(budget_gpus=NUM_GPUS, slo=SLO_, start_s=30.0)
BEST_PREFILL = {1.0: 1, 2.0: 5}  # prefill replicas of the best fixed split, by times the trace's rate
STARTS = [  # times the trace's rate, prefill and decode replicas
    slow_case((1.0, 3, 3)),
    slow_case((1.0, 8, 2)),  # short of KV
    slow_case((1.0, 10, 10)),  # all GPUs
    slow_case((2.0, 5, 5)),
]


@cache
def steady_requests(rate_scale: float) -> list[TraceRequest]:
    """Return six or twelve minutes of the trace in which the load hardly changes."""
    return read_trace(TRACE, rate_scale=rate_scale)


@cache
def best_split(rate_scale: float) -> Outcome:
    """Return the run of the best fixed split, which has all GPUs from the beginning."""
    prefill = BEST_PREFILL[rate_scale]
    return simulate(replace(BASE, prefill=prefill, decode=NUM_GPUS - prefill), steady_requests(rate_scale))


@pytest.fixture(scope="module", params=STARTS, ids=lambda start: "x{:g} from {}+{}".format(*start))
def runs(request: pytest.FixtureRequest) -> tuple[Outcome, Outcome]:
    """Return the autoscaler's run and that of the best split."""
    rate_scale, prefill, decode = request.param
    plan = replace(BASE, prefill=prefill, decode=decode, scaling=SCALING)
    return simulate(plan, steady_requests(rate_scale)), best_split(rate_scale)


@pytest.fixture
def autoscaled(runs: tuple[Outcome, Outcome]) -> Outcome:
    return runs[0]


def sizes_of(outcome: Outcome) -> list[tuple[float, int, int]]:
    """Return the wanted or serving replicas of each pool, without draining ones."""
    return [(each.since_s, each.ready.prefill, each.ready.decode) for each in outcome.sizes]


def test_the_budget_is_kept(autoscaled: Outcome) -> None:
    assert autoscaled.most_gpus <= NUM_GPUS
    assert all(prefill >= 1 and decode >= 1 for _, prefill, decode in sizes_of(autoscaled))


def test_a_steady_load_turns_no_pool_twice_in_ten_minutes(autoscaled: Outcome) -> None:
    sizes = sizes_of(autoscaled)
    times = [since_s for since_s, *_ in sizes]
    for pool in (1, 2):
        assert most_turns(turns([each[pool] for each in sizes], times), 600.0) <= 1


def test_as_good_as_the_best_split_for_fewer_gpu_hours(runs: tuple[Outcome, Outcome]) -> None:
    autoscaled, best = runs
    assert autoscaled.num_good(SLO_) >= 0.95 * best.num_good(SLO_)
    assert autoscaled.gpu_hours <= 0.95 * best.gpu_hours
    assert all(record.num_ends == 1 and record.refusal is None for record in autoscaled.records)


@pytest.mark.slow
@pytest.mark.parametrize("rate_scale", BEST_PREFILL)
def test_the_search_finds_a_split_as_good_as_the_best(rate_scale: float) -> None:
    """At twice the rate, splits from 5 + 15 to 10 + 10 differ by three requests."""
    found = SplitSearch(BASE, steady_requests(rate_scale), NUM_GPUS, SLO_, max_requests=600).best()
    assert found.num_good(SLO_) >= 0.998 * best_split(rate_scale).num_good(SLO_)


@pytest.mark.slow
def test_pools_grow_with_the_load() -> None:
    """From one replica each at four times the trace's rate: requested replicas serve after the time of a start."""
    plan = replace(BASE, prefill=1, decode=1, scaling=SCALING)
    outcome = simulate(plan, read_trace(TRACE, rate_scale=2.0, seconds=150.0))
    first, last = outcome.sizes[0], outcome.sizes[-1]
    assert (first.ready.prefill, first.ready.decode) == (1, 1)
    grown: Sizes = next(each for each in outcome.sizes if sum(each.ready.both()) > 2)
    granted = next(each for each in outcome.sizes if sum(each.gpus.both()) > 2)
    assert grown.since_s == pytest.approx(granted.since_s + 30.0)
    assert sum(last.gpus.both()) > 6
    assert outcome.most_gpus <= NUM_GPUS
    grown_pools = set()
    for decision in outcome.decisions:
        now_s = float(decision.split(" s: ")[0])
        there = [each.gpus for each in outcome.sizes if each.since_s <= now_s + 0.5][-1]
        for pool, before, after in re.findall(r"(prefill|decode): (\d+) -> (\d+)", decision):
            if int(after) > int(before):
                assert getattr(there, pool) >= int(after), decision
                grown_pools.add(pool)
    assert grown_pools == {"prefill", "decode"}


@pytest.mark.slow
@pytest.mark.parametrize("num_gpus", [6, slow_case(12)])
def test_a_cold_start_near_capacity_is_over_in_minutes(num_gpus: int) -> None:
    """The load needs all GPUs; a third of them are there at first, and the first outputs to end are short."""
    random = Random(7)
    due_s, requests = 0.0, list[TraceRequest]()
    while (due_s := due_s + random.expovariate(14.0 / 12 * num_gpus)) < 300.0:
        prompt, output = 1 + int(random.expovariate(1 / 6000)), 1 + int(random.expovariate(1 / 400))
        requests.append(TraceRequest(due_s, prompt, output, b""))
    first = num_gpus // 6
    plan = replace(BASE, prefill=first, decode=first, scaling=replace(SCALING, budget_gpus=num_gpus))
    outcome = simulate(plan, requests)
    assert outcome.most_gpus == num_gpus
    assert outcome.num_good(SLO_) > 0.45 * len(requests)  # nearly all of the second half
    late = [record for record in outcome.records if record.due_s > 250.0]
    assert sum(record.is_good(SLO_) for record in late) > 0.95 * len(late)
    granted = [each for each in outcome.sizes if each.since_s < 30.0][-1]
    assert sum(granted.gpus.both()) >= num_gpus * 5 // 6  # most of them within half a minute


def test_requests_without_a_place_in_the_batch_count_as_waiting() -> None:
    """KV arrives for all blocks; the planner counts sequences that decode, and that would with more replicas."""
    spec = replace(BASE.machine.spec, max_num_seqs=4)
    twin = Twin(replace(BASE, machine=replace(BASE.machine, spec=spec), prefill=4, decode=1, scaling=SCALING),
                [TraceRequest(0.0, 100, 2000, b"") for _ in range(12)])  # fmt: skip
    assert twin._autoscaler is not None
    twin._autoscaler.look = lambda: None  # type: ignore[method-assign]  # sizes stay
    seen: list[DecodeSnapshot] = []
    for at_s in (0.0, 2.0):
        twin.clock.at(at_s, lambda: seen.append(twin._autoscaler.snapshot().decode))  # type: ignore[union-attr]
    twin.run()
    assert (seen[0].num_running, seen[0].num_waiting) == (0, 0)
    assert (seen[1].num_running, seen[1].num_waiting) == (4, 8)
    held = twin.decode.ready[0].description.block_size
    assert 0 < seen[1].kv_used_tokens < 4 * (2100 + held)


def test_reports_include_tokens_computed_by_any_worker() -> None:
    """Colocated workers compute every uncached prompt, and a router reports these tokens."""
    requests = read_trace(TRACE, seconds=5.0)
    twin = Twin(replace(BASE, both=2), requests)
    window = twin._stage.traffic  # the input of the planner
    outcome = twin.run()
    traffic = window.traffic(requests[-1].due_s)
    mean_prompt = sum(each.num_prompt_tokens for each in requests) / len(requests)
    assert traffic.prompt_tokens.mean == pytest.approx(mean_prompt)
    assert 0.5 * mean_prompt < traffic.uncached_tokens.mean <= mean_prompt
    assert outcome.remote_share == 0
    assert traffic.remote_share == 0
