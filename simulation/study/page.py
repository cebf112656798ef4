"""A comparison as an HTML page."""

from importlib.resources import files

from jinja2 import Environment, StrictUndefined

from baton.loadtool.page.chart import NUM_COLOURS
from baton.simulation.study.charts import charts
from baton.simulation.study.comparison import Comparison
from baton.simulation.study.terminal import COLUMNS, cells, notes_of


def render_page(comparison: Comparison) -> str:
    """Return a self-contained page without scripts."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((files("baton.simulation.study") / "page.html.jinja").read_text())
    return template.render(
        comparison=comparison,
        columns=COLUMNS,
        cells=cells,
        notes=[line for outcome in comparison.outcomes for line in notes_of(outcome)],
        charts=charts(comparison),
        num_colours=NUM_COLOURS,
    )
