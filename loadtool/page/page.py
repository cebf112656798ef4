"""Renderer of the page."""

from collections.abc import Sequence
from importlib.resources import files

from jinja2 import Environment, StrictUndefined

from baton.loadtool.load_report import LoadReport
from baton.loadtool.page.chart import NUM_COLOURS
from baton.loadtool.page.charts import distribution_charts, sweep_charts, timeline_charts
from baton.loadtool.summary import Distribution, RunSummary
from baton.loadtool.terminal import COLUMNS, lines_of, number


def render_page(report: LoadReport) -> str:
    """Return self-contained HTML, without scripts, other files or network access."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["number"] = number
    template = environment.from_string((files("baton.loadtool.page") / "page.html.jinja").read_text())
    return template.render(
        report=report,
        summaries=[each.summary for each in report.runs],
        columns=COLUMNS,
        times_of=_times_of,
        lines_of=lines_of,
        sweep=sweep_charts(report.runs),
        distributions=distribution_charts(report.runs),
        timelines=[(each.summary.label, timeline_charts(each)) for each in report.runs],
        num_colours=NUM_COLOURS,
    )


def _times_of(summary: RunSummary) -> Sequence[tuple[str, Distribution]]:
    """Return a run's distributions with their names."""
    times = (("TTFT", summary.ttft_ms), ("TPOT", summary.tpot_ms), ("ITL", summary.itl_ms), ("E2E", summary.e2e_ms))
    return [(name, each) for name, each in times if each is not None]
