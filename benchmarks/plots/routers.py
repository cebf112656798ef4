"""TTFT of several routers in front of the same simulated workers."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.plots.theme import BATON, INK, LIMIT, MUTED, PEERS

ROUTERS = {"oracle": "oracle", "baton": "Baton", "dynamo": "Dynamo 1.6.1", "sglang-router": "sglang-router 0.3.2"}
COLORS = {"oracle": MUTED, "baton": BATON, "dynamo": PEERS[0], "sglang-router": PEERS[1]}
CELLS = (
    ("chat", "8 colocated"),
    ("chat", "4 prefill + 4 decode"),
    ("mooncake", "8 colocated"),
    ("mooncake", "4 prefill + 4 decode"),
)
TITLES = {"chat": "chats", "mooncake": "Mooncake"}

Times = Mapping[tuple[str, str, str], dict[str, Any]]  # by workload, workers and router


def routers_figure(results: Path) -> Figure:
    """Return a figure with bars for the median and p99, one panel for each workload and deployment."""
    times = {**_times(results / "routing.json"), **_times(results / "routing_chats.json")}  # five runs replace three
    figure = Figure(figsize=(8.4, 4.6), layout="constrained")
    panels = figure.subplots(2, len(CELLS), sharey=True)
    for row, quantile in zip(panels, ("p50", "p99"), strict=True):
        for axes, (workload, workers) in zip(row, CELLS, strict=True):
            values = [times[workload, workers, router][f"TTFT {quantile} ms"] for router in ROUTERS]
            _bars(axes, values)
            axes.set_title(f"{TITLES[workload]}, {quantile}\n{workers}", fontsize=9.5)
    figure.supxlabel("time to first token, ms (left is better)", color=MUTED, fontsize=10.5)
    return figure


def _bars(axes: Axes, values: list[float]) -> None:
    axes.barh(range(len(values)), values, color=list(COLORS.values()), height=0.62)
    axes.axvline(values[0], color=LIMIT, linewidth=1, linestyle="--")
    for place, value in enumerate(values):
        axes.text(value + max(values) * 0.03, place, f"{value:,.0f}", va="center", fontsize=9.5, color=INK)
    axes.set_yticks(range(len(values)), list(ROUTERS.values()))
    axes.set_ylim(len(values) - 0.4, -0.6)
    axes.set_xlim(0, max(values) * 1.34)
    axes.set_xticks([])
    axes.spines.bottom.set_visible(False)
    axes.tick_params(length=0)


def _times(path: Path) -> Times:
    rows: Iterable[dict[str, Any]] = json.loads(path.read_text())["rows"]
    return {(row["workload"], row["workers"], row["router"]): row for row in rows}
