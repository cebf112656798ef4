"""The charts of a load: distributions, curves over a sweep, and a run's timeline."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from baton.loadtool.arrivals import MaxConcurrency, RequestRate
from baton.loadtool.concurrency import concurrency_of
from baton.loadtool.load_report import MeasuredRun
from baton.loadtool.page.chart import Chart, Mark, Series
from baton.loadtool.page.ticks import Axis, linear_axis, log_axis, tight_axis
from baton.loadtool.record import RequestRecord
from baton.loadtool.summary import Distribution, RunSummary

NUM_QUANTILES = 200
MAX_DOTS = 1500
X_MARGIN = 1.03  # so that the last point of a sweep is not clipped
NUM_BINS = 240
SHARE_AXIS = Axis(0.0, 100.0, (0.0, 25.0, 50.0, 75.0, 100.0))

Values = NDArray[np.float64]


def distribution_charts(runs: Sequence[MeasuredRun]) -> list[Chart]:
    """Return a cumulative distribution chart for each latency, with one curve per run."""
    metrics: Sequence[tuple[str, Callable[[Sequence[RequestRecord]], Values]]] = (
        ("Time to first token", lambda records: np.array([record.ttft_s for record in records])),
        ("Time per output token", lambda records: np.array([record.tpot_s for record in records if record.tpot_s])),
        ("Time between pieces of output", _gaps),
        ("End to end", lambda records: np.array([record.e2e_s for record in records])),
    )
    charts = (_cumulative(title, [(each.summary.label, of(_done(each))) for each in runs]) for title, of in metrics)
    return [chart for chart in charts if chart is not None]


def sweep_charts(runs: Sequence[MeasuredRun]) -> list[Chart]:
    """Return charts of results over the load; none for fewer than two comparable loads."""
    loads = [load for each in runs if (load := _load_of(each)) is not None]
    if len(loads) != len(runs) or len(set(loads)) < 2:
        return []
    order = np.argsort(loads)
    loads = [loads[place] for place in order]
    summaries = [runs[place].summary for place in order]
    x_label = "requests per second" if isinstance(runs[0].run.arrivals, RequestRate) else "concurrent requests"

    def curve(title: str, y_label: str, figures: dict[str, Sequence[float]]) -> Chart:
        highest = max((value for values in figures.values() for value in values), default=1.0)
        series = [
            Series(label, list(zip(loads, values, strict=True)), Mark.MARKED_LINE) for label, values in figures.items()
        ]
        return Chart(title, x_label, y_label, tight_axis(max(loads) * X_MARGIN), linear_axis(highest), series)

    charts = [
        curve("Time to first token", "ms", _percentiles(summaries, lambda each: each.ttft_ms)),
        curve("Time per output token", "ms", _percentiles(summaries, lambda each: each.tpot_ms)),
        curve("Output", "tokens/s", {"output tokens": [each.output_tokens_per_s for each in summaries]}),
        curve("Requests", "per second", _request_rates(summaries)),
    ]
    return [chart for chart in charts if chart.series]


def timeline_charts(each: MeasuredRun) -> list[Chart]:
    """Return charts of each request's TTFT, and of the in-flight requests, over time."""
    done = _done(each)
    if not done:
        return []
    end_s = max(record.ended_s for record in each.run.records)
    x = tight_axis(end_s)
    sample = done[:: max(1, len(done) // MAX_DOTS)]
    ttfts = [(record.sent_s, record.ttft_s * 1000) for record in sample]
    concurrency = concurrency_of(each.run.records)
    edges = np.linspace(0.0, end_s, NUM_BINS + 1)
    counts = [concurrency.mean(begin, end) for begin, end in pairwise(edges.tolist())]
    points = list(zip(((edges[:-1] + edges[1:]) / 2).tolist(), counts, strict=True))
    times = log_axis(min(y for _, y in ttfts) or 1e-3, max(y for _, y in ttfts) or 1.0)
    return [
        Chart("Time to first token", "seconds", "ms", x, times, [Series("request", ttfts, Mark.DOTS)]),
        Chart("Requests in flight", "seconds", "requests", x, linear_axis(max(counts)),
              [Series("requests", points, Mark.AREA)]),
    ]  # fmt: skip


def _done(each: MeasuredRun) -> list[RequestRecord]:
    return [record for record in each.run.records if record.failure is None]


def _gaps(records: Sequence[RequestRecord]) -> Values:
    gaps = [np.diff(record.token_times_s) for record in records]
    return np.concatenate(gaps) if gaps else np.empty(0)


def _cumulative(title: str, measured: Sequence[tuple[str, Values]]) -> Chart | None:
    shares = np.linspace(0.0, 100.0, NUM_QUANTILES + 1)
    curves = [(label, np.percentile(values * 1000, shares)) for label, values in measured if len(values)]
    if not curves:
        return None
    # The axis leaves out the fastest and the slowest 0.1%, which would take most of it.
    low = min(float(np.percentile(values, 0.1)) for _, values in curves)
    high = max(float(np.percentile(values, 99.9)) for _, values in curves)
    series = [Series(label, list(zip(values.tolist(), shares.tolist(), strict=True))) for label, values in curves]
    return Chart(title, "ms", "% of all", log_axis(max(low, 1e-3), max(high, 2e-3)), SHARE_AXIS, series)


def _load_of(each: MeasuredRun) -> float | None:
    """Return a run's position on the sweep's axis."""
    arrivals = each.run.arrivals
    if isinstance(arrivals, MaxConcurrency):
        return float(arrivals.num_clients)
    return arrivals.per_s if isinstance(arrivals, RequestRate) and arrivals.per_s < float("inf") else None


def _percentiles(
    summaries: Sequence[RunSummary], of: Callable[[RunSummary], Distribution | None]
) -> dict[str, Sequence[float]]:
    """Return p50 and p99 of every run; empty if a run has none."""
    times = [found for each in summaries if (found := of(each)) is not None]
    if len(times) < len(summaries):
        return {}
    return {"p50": [each.p50 for each in times], "p99": [each.p99 for each in times]}


def _request_rates(summaries: Sequence[RunSummary]) -> dict[str, Sequence[float]]:
    rates: dict[str, Sequence[float]] = {"answered": [each.requests_per_s for each in summaries]}
    good = [each.goodput.per_s for each in summaries if each.goodput is not None]
    return {**rates, "within the SLOs": good} if len(good) == len(summaries) else rates
