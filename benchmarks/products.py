"""Products on a CPU: Baton's of each instruction set, and torch's (oneDNN's), interleaved.

oneDNN's instructions can be limited, to see what it does on an older processor:
ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 python -m benchmarks.products
"""

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from baton.engine.layers.linear import Linear
from baton.engine.layers.weights import panel_weight
from baton.engine.layers.weights.int8_weight import Int8PanelWeight, Int8Weight
from baton.engine.layers.weights.panel_weight import PairedWeight
from baton.engine.native.products import instruction_sets
from benchmarks.report import Report

SHAPES = ((1024, 6144), (3072, 1024))  # inputs and outputs: gate and up, and down, of Qwen3-0.6B
NUM_ROWS = (1, 2, 4, 8, 16, 64, 512, 2048)
TURN_S = 0.1  # that one product is repeated for, in a turn

Product = Callable[[Tensor], Tensor]


def products_with(weight: Tensor) -> dict[str, Product]:
    """Return the products with a weight [out_features, in_features] in bf16, by name: Baton's, then torch's."""
    found: dict[str, Product] = {}
    for name in instruction_sets():
        panel_weight.product_instructions = partial(str, name)
        found[f"{name} bf16"], found[f"{name} int8"] = PairedWeight(weight), Int8PanelWeight(weight)
    panel_weight.product_instructions = lambda: None
    found["torch bf16"] = Linear(weight)
    if torch.cpu._is_vnni_supported() and "ONEDNN_MAX_CPU_ISA" not in os.environ:  # without VNNI it takes minutes
        found["torch int8"] = Int8Weight(weight)
    found["torch fp32"] = _in_fp32(weight.float())
    return found


def measure(products: dict[str, Product], x: Tensor, turns: int) -> dict[str, float]:
    """Return the median seconds of each product with x, over turns that each product takes after the others."""
    seconds: dict[str, list[float]] = {name: [] for name in products}
    for _ in range(turns):
        for name, product in products.items():
            seconds[name].append(_seconds(product, x))
    return {name: median(each) for name, each in seconds.items()}


def main() -> None:
    """Print a table for both shapes: GFLOP/s by number of rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    limits = {name: os.environ[name] for name in ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY") if name in os.environ}
    report = Report(
        f"Products, GFLOP/s on {torch.get_num_threads()} threads, by number of rows",
        ["inputs x outputs", "product", *map(str, NUM_ROWS)],
    )
    for in_features, out_features in SHAPES:
        weight = (torch.randn(out_features, in_features) / in_features**0.5).bfloat16()
        products = products_with(weight)
        rates: dict[str, list[float]] = {name: [] for name in products}
        for num_rows in NUM_ROWS:
            x = torch.randn(num_rows, in_features).bfloat16()
            for name, seconds in measure(products, x, args.turns).items():
                rates[name].append(2e-9 * num_rows * weight.numel() / seconds)
        for name, each in rates.items():
            report.add(f"{in_features} x {out_features}", name, *each)
    report.notes.append(f"torch limited by {limits}" if limits else "torch with all instructions of this processor")
    report.show()
    if args.json:
        report.write(args.json)


def _in_fp32(weight: Tensor) -> Product:
    return lambda x: F.linear(x.float(), weight).to(x.dtype)


def _seconds(product: Product, x: Tensor) -> float:
    product(x)
    started_s, count = time.perf_counter(), 0
    while (passed_s := time.perf_counter() - started_s) < TURN_S:
        product(x)
        count += 1
    return passed_s / count


if __name__ == "__main__":
    main()
