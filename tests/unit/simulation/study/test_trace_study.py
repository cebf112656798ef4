"""A deployment compared with other uses of its GPUs, and the reports of that."""

import json
import subprocess
import sys
from dataclasses import replace
from io import StringIO

import psutil
import pytest
from rich.console import Console

from baton.deployment.autoscaling.settings import SLO, ScalingSettings
from baton.simulation.engine.spec import WorkerSpec
from baton.simulation.study.comparison import Comparison
from baton.simulation.study.json_report import FORMAT, to_json
from baton.simulation.study.page import render_page
from baton.simulation.study.runs import run_at_once, run_in_turn
from baton.simulation.study.search import SplitSearch, score_of
from baton.simulation.study.study import Study
from baton.simulation.study.terminal import show
from baton.simulation.twin.deployment_plan import DeploymentPlan
from baton.simulation.twin.machine import Machine
from baton.simulation.twin.outcome import Outcome
from baton.simulation.twin.trace_request import TraceRequest
from baton.simulation.twin.twin import simulate
from tests.marks import slow_case
from tests.unit.simulation.trace_load import random_load

MACHINE = Machine(
    spec=WorkerSpec(num_blocks=400, max_num_seqs=16, max_num_batched_tokens=256, prefill_tokens_per_s=4000.0),
    overhead_s=0.004,
    handover_s=0.002,
)
SLO_ = SLO(ttft_s=0.2, tpot_s=0.02)
PLAN = DeploymentPlan(machine=MACHINE, start_s=1.0)
REQUESTS = [each.request for each in random_load(5, 250, seconds=10.0)]


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    scaling = ScalingSettings(budget_gpus=6, slo=SLO_, start_s=1.0, upscale_delay_s=1.0, downscale_delay_s=3.0)
    asked = replace(PLAN, prefill=1, decode=1, scaling=scaling)
    return Study(
        trace="a <trace>", requests=REQUESTS, num_gpus=6, slo=SLO_, asked=asked, base=PLAN, machine="a machine"
    ).run()


@pytest.mark.parametrize("num_gpus", [2, 3, slow_case(8)])
def test_the_search_finds_the_best_split(num_gpus: int) -> None:
    outcomes = [
        simulate(replace(PLAN, prefill=prefill, decode=num_gpus - prefill), REQUESTS[:150])
        for prefill in range(1, num_gpus)
    ]
    most = max(outcome.num_good(SLO_) for outcome in outcomes)
    tried = []
    best = SplitSearch(PLAN, REQUESTS[:150], num_gpus, SLO_, note=tried.append).best()
    assert best.num_good(SLO_) >= 0.98 * most
    assert best in tried
    assert len({outcome.plan.prefill for outcome in tried}) == len(tried) < max(num_gpus, 3)
    assert all(score_of(best, SLO_) >= score_of(other, SLO_) for other in tried)


def test_one_gpu_has_no_split() -> None:
    with pytest.raises(ValueError, match="2 GPUs or more"):
        SplitSearch(PLAN, REQUESTS[:3], 1, SLO_)
    study = Study(trace="one", requests=REQUESTS[:3], num_gpus=1, slo=SLO_, asked=None, base=PLAN, machine="a machine")
    comparison = study.run()
    assert (comparison.asked, comparison.best, comparison.outcomes) == (None, None, [comparison.colocated])
    assert "1 colocated" in render_page(comparison)
    assert to_json(comparison)["best"] is None


@pytest.mark.slow
def test_the_table_lists_every_deployment(comparison: Comparison) -> None:
    text = StringIO()
    show(comparison, Console(file=text, width=250))
    lines = text.getvalue().splitlines()
    assert "250 requests" in lines[0]
    for label in ("autoscaled within 6", "best split:", "6 colocated"):
        assert [line for line in lines if line.startswith(label)]
    assert any("autoscaled within 6: 1+1 from 0 s, " in line for line in lines)  # growth of the pools


def test_the_json_figures_equal_those_of_the_runs(comparison: Comparison) -> None:
    content = json.loads(json.dumps(to_json(comparison)))
    assert (content["format"], content["num_requests"], content["num_gpus"]) == (FORMAT, 250, 6)
    assert comparison.asked is not None
    assert comparison.best is not None
    for name, outcome in (("asked", comparison.asked), ("best", comparison.best), ("colocated", comparison.colocated)):
        assert content[name]["num_good"] == outcome.num_good(SLO_)
        assert outcome.ttft_ms is not None
        assert content[name]["ttft_ms"]["p90"] == outcome.ttft_ms.p90
        assert content[name]["gpu_hours"] == pytest.approx(outcome.gpu_hours)
    assert content["colocated"]["gpu_hours"] == pytest.approx(6 * content["colocated"]["ended_s"] / 3600)
    assert content["asked"]["most_gpus"] <= 6
    assert content["asked"]["sizes"][0]["ready"] == {"prefill": 1, "decode": 1}
    assert len(content["asked"]["decisions"]) > 0
    assert [each["deployment"] for each in content["splits"]] == [each.plan.label for each in comparison.splits]


def test_the_page_is_self_contained(comparison: Comparison) -> None:
    page = render_page(comparison)
    assert page.count("<svg") == 5
    assert "a &lt;trace&gt;" in page
    for forbidden in ("<script", "http://", "https://", "src=", "@import"):
        assert forbidden not in page
    for title in ("Replicas over time", "Good requests", "Splits of 6 GPUs", "Time to first token"):
        assert title in page


def test_goodput_counts_requests_within_both_limits() -> None:
    outcome = simulate(replace(PLAN, both=2), [TraceRequest(0.0, 40, 3, b""), TraceRequest(2.0, 4000, 3, b"")])
    quick, slow = outcome.records
    assert quick.ttft_s == pytest.approx(0.01 + 40 / 4000 + 0.004)
    assert quick.tpot_s == pytest.approx(0.0101)
    assert slow.ttft_s > 1.0
    assert outcome.num_good(SLO_) == 1
    assert outcome.num_good(SLO(ttft_s=5.0, tpot_s=0.02)) == 2
    assert outcome.num_good(SLO(ttft_s=5.0, tpot_s=0.01)) == 0
    assert outcome.goodput(SLO_) == pytest.approx(1 / 2.0)


def test_runs_in_other_processes_give_equal_results() -> None:
    plans = [replace(PLAN, both=2), replace(PLAN, prefill=1, decode=1)]
    with run_at_once(2) as run_all:
        apart = run_all(plans, REQUESTS[:40])
    assert [each.records for each in apart] == [each.records for each in run_in_turn(plans, REQUESTS[:40])]


RUN_AND_WAIT = """
import time
from multiprocessing import active_children
from baton.simulation.twin.deployment_plan import DeploymentPlan
from baton.simulation.twin.machine import Machine
from baton.simulation.study.runs import run_at_once
from baton.simulation.twin.trace_request import TraceRequest

with run_at_once(1) as run_all:
    run_all([DeploymentPlan(machine=Machine(), both=1)], [TraceRequest(0.0, 40, 3, b"")])
    print(*(each.pid for each in active_children()), flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_child_processes_end_with_their_parent() -> None:
    """After SIGKILL the parent cannot end them itself."""
    with subprocess.Popen([sys.executable, "-c", RUN_AND_WAIT], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        (child,) = map(psutil.Process, map(int, process.stdout.readline().split()))
        process.kill()
        _, alive = psutil.wait_procs([child], timeout=30)
        for each in alive:
            each.kill()
    assert not alive


def test_a_long_trace_is_searched_by_its_first_requests() -> None:
    tried: list[Outcome] = []
    best = SplitSearch(PLAN, REQUESTS, 4, SLO_, note=tried.append, max_requests=50).best()
    assert {len(each.records) for each in tried} == {50}
    assert len(best.records) == len(REQUESTS)
    assert best.plan in [each.plan for each in tried]
