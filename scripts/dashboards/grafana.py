"""Grafana's JSON of a dashboard, by Grafana's own builders, which have its schema as types."""

import json
from collections.abc import Iterator
from itertools import count
from string import ascii_uppercase

from grafana_foundation_sdk.builders import dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.builders.common import (
    ReduceDataOptions,
    StackingConfig,
    VizLegendOptions,
    VizTooltipOptions,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    Threshold,
    ThresholdsMode,
    VariableHide,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from scripts.dashboards.board import MODELS, ROUTERS, Board, Choice, Panel

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
HEIGHTS = {"stat": 4, "timeseries": 8}
WIDTHS = {"stat": 4, "timeseries": 8}
# Name, label, query, whether several can be chosen, and what stands for all: a pattern, or the values of the list.
VARIABLES = (
    ("namespace", "Namespace", "label_values(baton:router_inflight, namespace)", False, ".*"),
    ("service", "Router", 'label_values(baton:router_inflight{namespace=~"$namespace"}, service)', False, ".*"),
    ("model", "Model", f"label_values(baton:router_inflight{{{ROUTERS}}}, model_name)", True, ".*"),
    ("pool", "Pool", f"label_values(baton:worker_info{{{MODELS}}}, role)", True, ".*"),
    ("worker", "Worker", f'label_values(baton:worker_info{{{MODELS},role=~"$pool"}}, worker)', True, None),
)


def grafana_json(board: Board) -> str:
    """Return the dashboard's JSON, with a line break at its end."""
    built = (
        dashboard.Dashboard(board.title)
        .uid(f"baton-{board.name}")
        .description(board.text)
        .tags(["baton"])
        .editable()
        .timezone("browser")
        .refresh("30s")
        .time("now-1h", "now")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for variable in _variables(board):
        built = built.with_variable(variable)
    numbers = count(1)
    for section in board.sections:
        row = dashboard.Row(section.title).id(next(numbers))
        panels = [_panel(panel, next(numbers)) for panel in section.panels]
        if section.is_collapsed:
            for panel in panels:
                row = row.with_panel(panel)
        built = built.with_row(row)
        if not section.is_collapsed:
            for panel in panels:
                built = built.with_panel(panel)
    return json.dumps(built.build(), cls=JSONEncoder, indent=1) + "\n"


def _panel(panel: Panel, number: int) -> stat.Panel | timeseries.Panel:
    built = _stat(panel) if panel.kind == "stat" else _time_series(panel)
    built = (
        built.id(number)
        .title(panel.title)
        .description(panel.text)
        .unit(panel.unit)
        .datasource(SOURCE)
        .span(WIDTHS[panel.kind])
        .height(HEIGHTS[panel.kind])
    )
    for letter, query in zip(ascii_uppercase, panel.queries, strict=False):
        target = prometheus.Dataquery().expr(query.expression).legend_format(query.legend).ref_id(letter)
        built = built.with_target(target.datasource(SOURCE).range())
    return built


def _stat(panel: Panel) -> stat.Panel:
    built = (
        stat.Panel()
        .reduce_options(ReduceDataOptions().calcs(["lastNotNull"]))
        .color_mode(BigValueColorMode.VALUE)
        .graph_mode(BigValueGraphMode.AREA)
    )
    steps = [Threshold(None, "text")]
    if panel.good_from is not None:
        steps = [Threshold(None, "red"), Threshold(panel.good_from, "green")]
    if panel.good_below is not None:
        steps = [Threshold(None, "green"), Threshold(panel.good_below, "red")]
    return built.thresholds(dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps))


def _time_series(panel: Panel) -> timeseries.Panel:
    built = (
        timeseries.Panel()
        .min(0)
        .fill_opacity(20 if panel.stacked else 5)
        .show_points(VisibilityMode.NEVER)
        .legend(VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM))
        .tooltip(VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
    )
    return built.stacking(StackingConfig().mode(StackingMode.NORMAL)) if panel.stacked else built


def _variables(board: Board) -> Iterator[dashboard.QueryVariable | dashboard.CustomVariable]:
    for name, label, query, is_multiple, everything in VARIABLES:
        variable = (
            dashboard.QueryVariable(name)
            .label(label)
            .datasource(SOURCE)
            .query(query)
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(VariableSort.ALPHABETICAL_ASC)
            .multi(is_multiple)
            .include_all(True)
            .current(VariableOption(selected=True, text="All", value="$__all"))
        )
        yield variable if everything is None else variable.all_value(everything)
    yield from map(_choice, board.choices)


def _choice(choice: Choice) -> dashboard.CustomVariable:
    default = choice.values[0]
    return (
        dashboard.CustomVariable(choice.name)
        .label(choice.label)
        .values(",".join(choice.values))
        .hide(VariableHide.DONT_HIDE)
        .current(VariableOption(selected=True, text=default, value=default))
        .options([VariableOption(selected=value == default, text=value, value=value) for value in choice.values])
    )
