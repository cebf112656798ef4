"""Random search for the autoscaler's settings with one trace (Bergstra and Bengio, JMLR 2012)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp, log
from random import Random
from typing import Any

from baton.deployment.autoscaling.settings import SLO, ScalingSettings
from baton.simulation.study.runs import RunAll
from baton.simulation.twin.deployment_plan import DeploymentPlan
from baton.simulation.twin.outcome import Outcome
from baton.simulation.twin.trace_request import TraceRequest

# Lowest and highest value of each setting that is varied; the logarithm is uniform in between.
RANGES = {
    "margin": (0.02, 0.5),
    "upscale_delay_s": (1.0, 30.0),
    "downscale_delay_s": (30.0, 1200.0),
    "shift_delay_s": (5.0, 120.0),
    "turn_s": (60.0, 1200.0),
    "correction_s": (30.0, 600.0),
    "max_correction": (1.0, 4.0),
}


def tune(
    plan: DeploymentPlan, requests: Sequence[TraceRequest], slo: SLO, num_trials: int, run_all: RunAll
) -> list[Outcome]:
    """Try random settings, the same ones for the same `plan.seed`.

    plan: with the settings that are tried first. Returns the runs that no other beats in good requests or GPU-hours
    without losing in the other, cheapest first.
    """
    assert plan.scaling is not None
    random = Random(plan.seed)
    trials = [plan] + [replace(plan, scaling=_drawn(plan.scaling, random)) for _ in range(num_trials - 1)]
    return best_of(run_all(trials, requests), slo)


def best_of(outcomes: Sequence[Outcome], slo: SLO) -> list[Outcome]:
    """Return the outcomes that have more good requests than all cheaper ones, cheapest first."""
    best: list[Outcome] = []
    for outcome in sorted(outcomes, key=lambda each: (each.gpu_hours, -each.num_good(slo))):
        if not best or outcome.num_good(slo) > best[-1].num_good(slo):
            best.append(outcome)
    return best


def varied(settings: ScalingSettings) -> Mapping[str, float]:
    """Return the settings that the search varies."""
    return {name: getattr(settings, name) for name in RANGES}


def _drawn(settings: ScalingSettings, random: Random) -> ScalingSettings:
    values: dict[str, Any] = {}
    for name, (low, high) in RANGES.items():
        value = exp(random.uniform(log(low), log(high)))
        values[name] = float(f"{value:.2g}")
    return replace(settings, **values)
