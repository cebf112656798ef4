"""Decode steps of models whose weights are partly on a disk, and the disk's time for what they read."""

import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.plots.theme import BATON, INK, LIMIT, MUTED

SHARES = {0.0: "least", 0.5: "half", 1.0: "all"}


def weights_offload_figure(results: Path) -> Figure:
    """Return a figure of the time per step, with the time that the disk needs for the weights read in it."""
    decodes: list[dict[str, Any]] = json.loads((results / "weights_offload.json").read_text())["decodes"]
    figure = Figure(figsize=(8.4, 5.4), layout="constrained")
    axes = figure.subplots()
    steps = [1000 * each["step_s"] for each in decodes]
    axes.barh(range(len(decodes)), steps, color=BATON, height=0.62, label="a step")
    for place, (each, step) in enumerate(zip(decodes, steps, strict=True)):
        axes.text(step + 2, place, f"{step:.0f}", va="center", fontsize=9.5, color=INK)
        if each["floor_s"]:
            floor, label = 1000 * each["floor_s"], None if place else "its reads alone (limit)"
            line = {"color": LIMIT, "linestyle": "--", "linewidth": 1.4}
            axes.plot([floor, floor], [place - 0.42, place + 0.42], label=label, **line)
    axes.set_yticks(range(len(decodes)), [_label(each["case"]) for each in decodes])
    axes.set_ylim(len(decodes) - 0.4, -0.6)
    axes.set_xlabel("milliseconds (left is better)", color=MUTED)
    axes.tick_params(length=0)
    figure.legend(loc="outside upper center", ncols=2)
    return figure


def _label(case: dict[str, Any]) -> str:
    requests = "1 request" if case["num_requests"] == 1 else f"{case['num_requests']} requests"
    return f"{case['model']}, {case['quantization'] or 'bf16'}, {SHARES[case['share']]} in memory, {requests}"
