"""Output rates of CPU engines relative to the machine's limit."""

import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.plots.theme import BATON, GRID, LIMIT, MUTED, PEERS

FILES = ("bf16_1", "bf16_8", "prefix", "int8_1", "int8_8", "moe_1", "moe_8", "moe_32")
NAMES = {"openvino": "OpenVINO GenAI", "vllm": "vLLM (CPU)", "llama_cpp": "llama.cpp"}
SERIES = {"bf16": "bf16", "int8": "int8", "moe": "MoE", "prefix": "bf16, shared prefix"}
ORDER = ("bf16", "prefix", "int8", "moe")

Row = dict[str, Any]


def engines_figure(results: Path) -> Figure:
    """Return a figure with a line for each workload and a mark for each engine; 1 is the machine's limit."""
    rows = list(chain.from_iterable(_rows(results / f"engines_half_{name}.json") for name in FILES))
    cells = sorted(
        {(row["series"], row["prompt"], row["clients"]) for row in rows},
        key=lambda cell: (ORDER.index(cell[0]), *cell[1:]),
    )
    figure = Figure(figsize=(8.4, 5.4), layout="constrained")
    axes = figure.subplots()
    for place, cell in enumerate(cells):
        of_cell = [row for row in rows if (row["series"], row["prompt"], row["clients"]) == cell]
        shares = [row["of the floor"] for row in of_cell if row["engine"] in NAMES or row["engine"] == "baton"]
        axes.plot([min(shares), max(shares)], [place, place], color=GRID, linewidth=3, zorder=1)
    for engine, name, color, marker in _engines():
        of_engine = [row for row in rows if row["engine"] == engine]
        shares, places = [row["of the floor"] for row in of_engine], [cells.index(_cell(row)) for row in of_engine]
        size = 75 if engine == "baton" else 42
        axes.scatter(shares, places, label=name, color=color, marker=marker, s=size, zorder=3)
    axes.axvline(1, color=LIMIT, linewidth=1.2, linestyle="--", label="limit of the machine")
    axes.set_yticks(range(len(cells)), [_label(cell, rows) for cell in cells])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.1)
    figure.supxlabel(
        "output tokens per second, as a share of the machine's limit (right is better)", fontsize=10.5, color=MUTED
    )
    axes.grid(axis="x")
    axes.tick_params(length=0)
    figure.legend(loc="outside upper center", ncols=5, handletextpad=0.3, columnspacing=1.4)
    return figure


def _engines() -> Sequence[tuple[str, str, str, str]]:
    peers = [(*item, color, marker) for item, color, marker in zip(NAMES.items(), PEERS, "s^D", strict=False)]
    return [*peers, ("baton", "Baton", BATON, "o")]  # drawn last, on top


def _rows(path: Path) -> list[Row]:
    rows: list[Row] = json.loads(path.read_text())["rows"]
    return rows


def _cell(row: Row) -> tuple[str, int, int]:
    return row["series"], row["prompt"], row["clients"]


def _label(cell: tuple[str, int, int], rows: Sequence[Row]) -> str:
    """Return the workload with Baton's rate and the limit in tokens per second."""
    rate, limit = (
        next(row["output tok/s"] for row in rows if _cell(row) == cell and row["engine"] == engine)
        for engine in ("baton", "(floor)")
    )
    series, prompt, clients = cell
    noun = "client" if clients == 1 else "clients"
    return f"{SERIES[series]}, {prompt} tokens, {clients} {noun}: {rate:.0f} of {limit:.0f} tok/s"
