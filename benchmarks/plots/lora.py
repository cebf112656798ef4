"""Output rates with LoRA adapters, as shares of the rate without."""

import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.plots.theme import BATON, INK, LIMIT, MUTED

CASES = {
    "base": "adapters are enabled, requests have none",
    "one adapter": "the same adapter for all 8 requests",
    "half": "an adapter each for 4 of 8 requests",
    "an adapter each": "an adapter each for 8 requests",
}


def lora_figure(results: Path) -> Figure:
    """Return a figure of each case's rate over that of an engine without adapters."""
    rows: list[dict[str, Any]] = json.loads((results / "lora.json").read_text())["rows"]
    ratios = {row["case"]: row["ratio"] for row in rows}
    figure = Figure(figsize=(8.4, 2.4), layout="constrained")
    axes = figure.subplots()
    shares = [ratios[case] for case in CASES]
    axes.barh(range(len(CASES)), shares, color=BATON, height=0.62)
    for place, share in enumerate(shares):
        axes.text(share - 0.01, place, f"{share:.2f}", va="center", ha="right", fontsize=9.5, color="white")
    axes.axvline(1, color=LIMIT, linestyle="--", linewidth=1.2, label="without adapters")
    axes.set_yticks(range(len(CASES)), list(CASES.values()), color=INK)
    axes.set_ylim(len(CASES) - 0.4, -0.6)
    axes.set_xlabel("share of the tokens per second (right is better)", color=MUTED)
    axes.tick_params(length=0)
    figure.legend(loc="outside upper center")
    return figure
