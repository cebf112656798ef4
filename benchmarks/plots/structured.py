"""Output rates with and without a grammar."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.plots.theme import BATON, INK, PEERS

SYSTEMS = {
    "baton colocated": ("Baton, one worker", BATON),
    "baton": ("Baton, prefill and decode", PEERS[3]),
    "vllm": ("vLLM's CPU backend", PEERS[0]),
}
OUTPUTS = {"free": "no grammar", "schema": "schema", "long names": "schema with\nlong names"}
WIDTH = 0.27


def structured_figure(results: Path) -> Figure:
    """Return a figure of the output rate of each system, by kind of output."""
    rows: list[dict[str, Any]] = json.loads((results / "structured.json").read_text())["rows"]
    rates = {(row["system"], row["output"]): row["output tok/s"] for row in rows}
    figure = Figure(figsize=(8.4, 3.2), layout="constrained")
    axes = figure.subplots()
    for index, (system, (label, color)) in enumerate(SYSTEMS.items()):
        places = np.arange(len(OUTPUTS)) + (index - 1) * WIDTH
        heights = [rates[system, output] for output in OUTPUTS]
        axes.bar(places, heights, width=WIDTH - 0.03, color=color, label=label)
        for place, height in zip(places, heights, strict=True):
            axes.text(place, height + 2, f"{height:.0f}", ha="center", fontsize=9.5, color=INK)
    axes.set_xticks(range(len(OUTPUTS)), list(OUTPUTS.values()))
    axes.set_ylabel("output tokens per second")
    axes.tick_params(length=0)
    figure.legend(loc="outside upper center", ncols=3, handletextpad=0.4, columnspacing=1.3)
    return figure
