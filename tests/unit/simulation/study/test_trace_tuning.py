"""The search for the autoscaler's settings."""

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from baton.cli.simulate import command
from baton.deployment.autoscaling.settings import SLO, ScalingSettings
from baton.simulation.engine.spec import WorkerSpec
from baton.simulation.study.json_report import to_json
from baton.simulation.study.runs import run_in_turn
from baton.simulation.study.study import Study
from baton.simulation.study.terminal import show
from baton.simulation.study.tuning import RANGES, best_of, tune, varied
from baton.simulation.twin.deployment_plan import DeploymentPlan
from baton.simulation.twin.machine import Machine
from tests.unit.simulation.trace_load import random_load

LIMITS = SLO(ttft_s=0.2, tpot_s=0.02)
SETTINGS = ScalingSettings(budget_gpus=6, slo=LIMITS, start_s=1.0)
PLAN = DeploymentPlan(
    machine=Machine(
        spec=WorkerSpec(num_blocks=400, max_num_seqs=16, max_num_batched_tokens=256, prefill_tokens_per_s=4000.0)
    ),
    prefill=1,
    decode=1,
    start_s=1.0,
    scaling=SETTINGS,
)
REQUESTS = [each.request for each in random_load(5, 80, seconds=10.0)]


def test_the_best_settings_are_no_worse_than_the_given_ones() -> None:
    [given] = tune(PLAN, REQUESTS, LIMITS, 1, run_in_turn)
    assert given.plan == PLAN
    best = tune(PLAN, REQUESTS, LIMITS, 3, run_in_turn)
    assert best == best_of(best, LIMITS)
    assert any(each.num_good(LIMITS) >= given.num_good(LIMITS) and each.gpu_hours <= given.gpu_hours for each in best)
    again = tune(PLAN, REQUESTS, LIMITS, 3, run_in_turn)
    assert [each.plan for each in again] == [each.plan for each in best]


def test_drawn_settings_are_within_their_ranges() -> None:
    drawn: list[DeploymentPlan] = []

    def collect(plans, requests):  # type: ignore[no-untyped-def]
        drawn.extend(plans)
        return run_in_turn(plans[:1], requests)

    tune(PLAN, REQUESTS[:5], LIMITS, 40, collect)
    assert len({plan.scaling for plan in drawn}) == 40
    for plan in drawn[1:]:
        assert plan.scaling is not None
        plan.scaling.check()
        assert replace(plan.scaling, **{name: getattr(SETTINGS, name) for name in RANGES}) == SETTINGS
        for name, value in varied(plan.scaling).items():
            low, high = RANGES[name]
            assert low <= value <= high


def test_the_reports_show_the_settings() -> None:
    study = Study(
        trace="a trace",
        requests=REQUESTS,
        num_gpus=6,
        slo=LIMITS,
        asked=PLAN,
        base=replace(PLAN, prefill=0, decode=0, scaling=None),
        machine="a machine",
        num_trials=2,
    )
    comparison = study.run()
    assert comparison.tuned
    content = json.loads(json.dumps(to_json(comparison)))
    assert [each["settings"] for each in content["tuned"]] == [
        dict(varied(each.plan.scaling)) for each in comparison.tuned if each.plan.scaling is not None
    ]
    output = StringIO()
    show(comparison, Console(file=output, width=250))
    text = output.getvalue()
    assert "best settings of the autoscaler" in text
    assert all(name in text for name in RANGES)


@pytest.mark.parametrize(
    ("content", "flags", "message"),
    [
        ("margin: 0.1\n", [], "--scaling and --tune need --autoscale"),
        (None, ["--tune", "3"], "--scaling and --tune need --autoscale"),
        ("budget_gpus: 3\n", ["--autoscale"], "budget_gpus is --gpus here"),
        ("marjin: 0.1\n", ["--autoscale"], "marjin: unknown option"),
        ("margin: 3\n", ["--autoscale"], "margin is 3"),
        ("- 1\n", ["--autoscale"], "must be a mapping"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, content: str | None, flags: list[str], message: str) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(json.dumps({"timestamp": 0, "input_length": 10, "output_length": 3, "hash_ids": [1]}) + "\n")
    if content is not None:
        (tmp_path / "scaling.yaml").write_text(content)
        flags = [*flags, "--scaling", str(tmp_path / "scaling.yaml")]
    result = CliRunner().invoke(command, ["--trace", str(trace), "--gpus", "4", *flags])
    assert result.exit_code != 0
    assert message in " ".join(result.output.split()), result.output
