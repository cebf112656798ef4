"""The charts of a comparison as one PNG, drawn by matplotlib, which is an optional dependency."""

from importlib.util import find_spec
from pathlib import Path

from baton.loadtool.page.chart import Mark
from baton.simulation.study.charts import charts
from baton.simulation.study.comparison import Comparison

NUM_COLUMNS = 2
CHART_INCHES = (6.4, 4.0)
DOTS_PER_INCH = 120


def can_draw() -> bool:
    """Return whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def draw_picture(comparison: Comparison, path: Path) -> None:
    """Write the charts to a file. Raises ImportError without matplotlib."""
    from matplotlib.figure import Figure  # type: ignore[import-not-found, unused-ignore]  # optional, and heavy

    shown = charts(comparison)
    num_rows = -(-len(shown) // NUM_COLUMNS)
    figure = Figure((CHART_INCHES[0] * NUM_COLUMNS, CHART_INCHES[1] * num_rows), DOTS_PER_INCH, layout="constrained")
    for place, chart in enumerate(shown):
        axes = figure.add_subplot(num_rows, NUM_COLUMNS, place + 1)
        axes.set(title=chart.title, xlabel=chart.x_label, ylabel=chart.y_label)
        if chart.x.is_log:
            axes.set_xscale("log")
        axes.set_xlim(chart.x.low, chart.x.high)
        axes.set_ylim(chart.y.low, chart.y.high)
        for series in chart.series:
            marker = "o" if series.mark is Mark.MARKED_LINE else None
            axes.plot(*zip(*series.points, strict=True), marker=marker, label=series.label)
        if len(chart.series) > 1:
            axes.legend(fontsize="small")
    figure.suptitle(f"{comparison.trace} on {comparison.num_gpus} GPUs")
    figure.savefig(path)
