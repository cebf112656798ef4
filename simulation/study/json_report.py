"""A comparison as JSON."""

from dataclasses import asdict

from baton.loadtool.summary import Distribution
from baton.simulation.study.comparison import Comparison
from baton.simulation.study.tuning import varied
from baton.simulation.twin.outcome import Outcome

FORMAT = "baton simulation, version 1"


def to_json(comparison: Comparison) -> dict[str, object]:
    """Return the content of the file. Latencies are in ms, times of the trace in seconds."""
    return {
        "format": FORMAT,
        "when": comparison.when,
        "trace": comparison.trace,
        "num_requests": comparison.num_requests,
        "num_gpus": comparison.num_gpus,
        "slo": asdict(comparison.slo),
        "machine": comparison.machine,
        "speed": comparison.speed,
        "asked": _outcome(comparison.asked, comparison),
        "best": _outcome(comparison.best, comparison),
        "colocated": _outcome(comparison.colocated, comparison),
        "splits": [_outcome(each, comparison, with_history=False) for each in comparison.splits],
        "tuned": [_tuned(each, comparison) for each in comparison.tuned],
    }


def _outcome(outcome: Outcome | None, comparison: Comparison, with_history: bool = True) -> dict[str, object] | None:
    if outcome is None:
        return None
    content: dict[str, object] = {
        "deployment": outcome.plan.label,
        "num_good": outcome.num_good(comparison.slo),
        "goodput_per_s": outcome.goodput(comparison.slo),
        "num_refused": len(outcome.records) - len(outcome.answered),
        "ttft_ms": _distribution(outcome.ttft_ms),
        "tpot_ms": _distribution(outcome.tpot_ms),
        "cached_share": outcome.cached_share,
        "remote_share": outcome.remote_share,
        "num_preemptions": outcome.num_preemptions,
        "gpu_hours": outcome.gpu_hours,
        "most_gpus": outcome.most_gpus,
        "ended_s": outcome.ended_s,
        "num_events": outcome.num_events,
        "cpu_s": outcome.cpu_s,
    }
    if with_history:
        content["sizes"] = [
            {"since_s": each.since_s, "ready": asdict(each.ready), "gpus": asdict(each.gpus)} for each in outcome.sizes
        ]
        content["decisions"] = list(outcome.decisions)
    return content


def _tuned(outcome: Outcome, comparison: Comparison) -> dict[str, object]:
    assert outcome.plan.scaling is not None
    return {
        "settings": dict(varied(outcome.plan.scaling)),
        "num_good": outcome.num_good(comparison.slo),
        "gpu_hours": outcome.gpu_hours,
    }


def _distribution(found: Distribution | None) -> dict[str, float] | None:
    return asdict(found) if found is not None else None
