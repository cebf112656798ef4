"""Output rates with n-gram drafts, as multiples of those without."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.plots.theme import BATON, LIMIT, PEERS

WORKLOADS = {"editing": ("the output repeats the prompt", BATON), "free": ("nothing repeats", PEERS[0])}
WIDTH = 0.36


def speculation_figure(results: Path) -> Figure:
    """Return a figure of the ratio of the rates for each number of requests."""
    rows: list[dict[str, Any]] = json.loads((results / "speculation.json").read_text())["rows"]
    ratios = {(row["workload"], row["batch"]): row["ratio"] for row in rows}
    batches = sorted({row["batch"] for row in rows})
    figure = Figure(figsize=(8.4, 3.0), layout="constrained")
    axes = figure.subplots()
    for index, (workload, (label, color)) in enumerate(WORKLOADS.items()):
        places = np.arange(len(batches)) + (index - 0.5) * WIDTH
        heights = [ratios[workload, batch] for batch in batches]
        axes.bar(places, heights, width=WIDTH - 0.03, color=color, label=label)
        for place, height in zip(places, heights, strict=True):
            axes.text(place, height - 0.1, f"{height:.2f}", ha="center", va="top", fontsize=9.5, color="white")
    axes.axhline(1, color=LIMIT, linestyle="--", linewidth=1.2, label="without drafts")
    axes.set_xticks(range(len(batches)), [f"{batch} request{'s' * (batch > 1)}" for batch in batches])
    axes.set_ylabel("times the tokens per second")
    axes.tick_params(length=0)
    figure.legend(loc="outside upper center", ncols=3, handletextpad=0.4, columnspacing=1.3)
    return figure
