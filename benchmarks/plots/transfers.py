"""Transfer rates of KV blocks on one host."""

import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.plots.theme import BATON, LIMIT, MUTED, PEERS

METHODS = {  # by name: label, colour, and line, dashed for what limits the others
    "memcpy": ("memcpy (limit of memory)", LIMIT, "--"),
    "raw socket": ("raw socket (limit of TCP)", MUTED, "--"),
    "shared_memory": ("shared memory", BATON, "-"),
    "nixl": ("NIXL", PEERS[0], "-"),
    "tcp": ("TCP", PEERS[1], "-"),
}


def transfers_figure(results: Path) -> Figure:
    """Return a figure of the rate of each transport over the size of a block."""
    rows: list[dict[str, Any]] = json.loads((results / "kv_transfer.json").read_text())["results"]
    figure = Figure(figsize=(8.4, 3.4), layout="constrained")
    axes = figure.subplots()
    for method, (label, color, line) in METHODS.items():
        points = sorted((row["block_kib"], row["gb_per_s"]) for row in rows if row["method"] == method)
        axes.plot(*zip(*points, strict=True), color=color, linestyle=line, marker="o", markersize=5, label=label)
    axes.set_xscale("log", base=2)
    sizes = sorted({row["block_kib"] for row in rows})
    axes.set_xticks(sizes, [f"{size} KiB" if size < 1024 else f"{size // 1024} MiB" for size in sizes])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("size of a block")
    axes.set_ylabel("GB per second")
    axes.grid(axis="y")
    axes.tick_params(length=0)
    figure.legend(loc="outside right upper")
    return figure
