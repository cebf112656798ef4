"""Goodput of split pools and colocated workers: measured with two engine processes, and simulated."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.plots.theme import BATON, INK, LIMIT, MUTED, PAPER, PEERS

SYSTEMS = {
    "colocated": "2 colocated",
    "always_remote": "1 prefill + 1 decode",
    "priced": "1 colocated + 1 decode, priced",
}
SYSTEM_COLORS = (PEERS[0], PEERS[1], BATON)
DEPLOYMENTS = (
    (False, PEERS[0], "s", "colocated"),
    (True, BATON, "o", "best split into prefill and decode"),
)
PANELS = (
    ("azure", "ttft=1s,tpot=20ms", 2),
    ("azure", "ttft=1s,tpot=20ms", 8),
    ("azure", "ttft=1s,tpot=30ms", 8),
    ("mooncake", "ttft=4s,tpot=30ms", 8),
)
TRACES = {"mooncake": "Mooncake\nlong prompts", "azure": "Azure\nmedium prompts", "mixed": "mixed\nboth extremes"}


def measured_figure(results: Path) -> Figure:
    """Return a figure of the goodput of three systems with two engine processes, with spread and offered rate."""
    rows: list[dict[str, Any]] = json.loads((results / "disaggregation.json").read_text())["rows"]
    by_cell = {(row["trace"], row["system"]): row for row in rows}
    figure = Figure(figsize=(8.4, 3.6), layout="constrained")
    axes = figure.subplots()
    for index, (system, color) in enumerate(zip(SYSTEMS, SYSTEM_COLORS, strict=True)):
        of_system = [by_cell[trace, system] for trace in TRACES]
        places = np.arange(len(TRACES)) + (index - 1) * 0.27
        heights = [row["goodput/s"] for row in of_system]
        spreads = [row["goodput/s"] * row["spread %"] / 200 for row in of_system]
        axes.bar(places, heights, width=0.24, color=color, label=SYSTEMS[system])
        for ink, width in ((PAPER, 3), (INK, 1)):  # with an edge, to be seen on bars of every colour
            lines = {"elinewidth": width, "capsize": 3, "capthick": width}
            axes.errorbar(places, heights, spreads, fmt="none", ecolor=ink, **lines)
        for place, height in zip(places, heights, strict=True):
            axes.text(place, 0.15, f"{height:.1f}", ha="center", fontsize=9.5, color=PAPER, fontweight="bold")
    for place, trace in enumerate(TRACES):
        offered = by_cell[trace, "priced"]["offered/s"]
        label = "offered (limit)" if place == 0 else None
        axes.plot([place - 0.42, place + 0.42], [offered] * 2, color=LIMIT, linestyle="--", linewidth=1.2, label=label)
    axes.set_xticks(range(len(TRACES)), list(TRACES.values()))
    axes.set_ylabel("good answers per second")
    axes.tick_params(length=0)
    figure.legend(loc="outside upper center", ncols=4, handletextpad=0.4, columnspacing=1.3)
    return figure


def simulated_figure(results: Path) -> Figure:
    """Return a figure of the fraction of requests within the SLO over the offered rate, by trace, GPUs and limit."""
    rows: list[dict[str, Any]] = json.loads((results / "separation.json").read_text())["rows"]
    figure = Figure(figsize=(8.4, 4.8), layout="constrained")
    for axes, (trace, slo, num_gpus) in zip(figure.subplots(2, 2).flat, PANELS, strict=True):
        for split, color, marker, label in DEPLOYMENTS:
            points = [
                (row["offered/s"], row["good %"])
                for row in rows
                if (row["trace"], row["SLO"], row["GPUs"]) == (trace, slo, num_gpus)
                and ("prefill" in row["deployment"]) == split
            ]
            axes.plot(*zip(*points, strict=True), color=color, marker=marker, label=label, linewidth=1.8, markersize=6)
        limit_ms = slo.rpartition("=")[2].removesuffix("ms")
        axes.set_title(f"{trace.capitalize()}, {num_gpus} GPUs, TPOT limit {limit_ms} ms")
        axes.set_ylim(0, 106)
        axes.set_xlim(left=0)
        axes.grid()
        axes.tick_params(length=0)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    figure.supxlabel("requests offered per second", color=MUTED, fontsize=10.5)
    figure.supylabel("good requests, %", color=MUTED, fontsize=10.5)
    return figure
