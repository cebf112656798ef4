"""The charts of a comparison."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from baton.loadtool.page.chart import Chart, Mark, Series
from baton.loadtool.page.ticks import Axis, linear_axis, log_axis, tight_axis
from baton.simulation.study.comparison import Comparison
from baton.simulation.twin.outcome import Outcome
from baton.simulation.twin.record import Record

NUM_QUANTILES = 200
NUM_BINS = 60
LEAST_MS = 0.01  # smallest value on a logarithmic axis
SHARE_AXIS = Axis(0.0, 100.0, (0.0, 25.0, 50.0, 75.0, 100.0))

Point = tuple[float, float]


def charts(comparison: Comparison) -> list[Chart]:
    """Return the charts that have data."""
    found = [
        _sizes_chart(comparison),
        _good_chart(comparison),
        _splits_chart(comparison),
        _times_chart(comparison, "Time to first token", lambda record: record.ttft_s),
        _times_chart(comparison, "Time per output token", lambda record: record.tpot_s),
    ]
    return [chart for chart in found if chart is not None]


def _sizes_chart(comparison: Comparison) -> Chart | None:
    """Return the ready replicas of the given deployment over time."""
    outcome = comparison.asked
    if outcome is None or outcome.plan.both:
        return None
    parts: Sequence[tuple[str, list[Point]]] = (
        ("prefill, ready", [(each.since_s, each.ready.prefill) for each in outcome.sizes]),
        ("decode, ready", [(each.since_s, each.ready.decode) for each in outcome.sizes]),
        ("GPUs in use", [(each.since_s, sum(each.gpus.both())) for each in outcome.sizes]),
    )
    series = [Series(label, _stairs(points, outcome.ended_s)) for label, points in parts]
    highest = max(y for each in series for _, y in each.points)
    return Chart(
        "Replicas over time", "s", f"of {outcome.plan.label}", tight_axis(outcome.ended_s), linear_axis(highest), series
    )


def _good_chart(comparison: Comparison) -> Chart:
    """Return the share of requests within the SLO by their time of arrival."""
    end_s = comparison.colocated.seconds
    series = [Series(comparison.label(each), _good_shares(each, comparison, end_s)) for each in comparison.outcomes]
    return Chart("Good requests", "s", "% of arrivals", tight_axis(end_s), SHARE_AXIS, series)


def _splits_chart(comparison: Comparison) -> Chart | None:
    """Return the goodput of every split that was tried."""
    if len(comparison.splits) < 2:
        return None
    points = [(float(each.plan.prefill), each.goodput(comparison.slo)) for each in comparison.splits]
    series = [Series("fixed split", points, Mark.MARKED_LINE)]
    highest = max(y for _, y in points)
    return Chart(
        f"Splits of {comparison.num_gpus} GPUs",
        "prefill replicas",
        "good req/s",
        tight_axis(float(comparison.num_gpus)),
        linear_axis(highest),
        series,
    )


def _times_chart(comparison: Comparison, title: str, of: Callable[[Record], float]) -> Chart | None:
    """Return the cumulative distributions of a time."""
    times = [
        (comparison.label(each), np.array([max(LEAST_MS, 1000 * of(record)) for record in each.answered]))
        for each in comparison.outcomes
    ]
    times = [(label, values) for label, values in times if len(values)]
    if not times:
        return None
    shares = np.linspace(0, 100, NUM_QUANTILES)
    curves = [(label, np.percentile(values, shares)) for label, values in times]
    series = [Series(label, list(zip(curve.tolist(), shares.tolist(), strict=True))) for label, curve in curves]
    low, high = min(curve[1] for _, curve in curves), max(curve[-1] for _, curve in curves)
    return Chart(title, "ms", "% of requests", log_axis(float(low), float(high)), SHARE_AXIS, series)


def _stairs(points: Sequence[Point], end_s: float) -> list[Point]:
    """Return the corners of a step function in which each value holds until the next."""
    corners: list[Point] = []
    for (time_s, value), (next_s, _) in pairwise([*points, (end_s, 0.0)]):
        corners += [(time_s, value), (next_s, value)]
    return corners


def _good_shares(outcome: Outcome, comparison: Comparison, end_s: float) -> list[Point]:
    width_s = max(end_s, 1e-9) / NUM_BINS
    counts = np.zeros((NUM_BINS, 2))
    for record in outcome.records:
        bin_ = min(NUM_BINS - 1, int(record.due_s / width_s))
        counts[bin_] += (1, record.is_good(comparison.slo))
    return [
        ((place + 0.5) * width_s, 100.0 * good / total) for place, (total, good) in enumerate(counts.tolist()) if total
    ]
