"""Time of FP8 products of few tokens by the kernel, in several tilings, and by torch, from the GPU's memory."""

import time
from collections.abc import Callable
from functools import partial
from itertools import cycle, islice, product

import torch
from torch import Tensor

from baton.engine.layers.fp8_tokens.product import product_kernel
from baton.engine.layers.fp8_tokens.quantise import E4M3
from baton.engine.layers.weights.fp8_weight import BLOCK, BlockScaledWeight, RowScaledWeight
from benchmarks.gpu.speed.roofline import limits_of
from benchmarks.gpu.stage import Record, Setting

SHAPES = ((6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288))  # outputs, size: Qwen3-8B's
COUNTS = (1, 4, 8)  # tokens
TILINGS = (  # see `Tiling`
    (32, 4, 3), (32, 8, 4), (32, 4, 4), (64, 4, 3), (16, 4, 4), (16, 8, 4), (32, 4, 6), (16, 16, 3),
)  # fmt: skip
TILING_COUNTS = (1, 8)
BUDGET_S = 20.0  # after which no further tiling is compiled
WEIGHT_BYTES = 256 << 20  # of different weights in turn, more than the GPU's cache
FEWEST_CALLS, NUM_REPLAYS = 24, 5

Weight = RowScaledWeight | BlockScaledWeight


def note_products(setting: Setting, record: Record) -> None:
    """Note the time of each product and its share of the memory bandwidth that a copy has."""
    scalings = [scaling for scaling in ("rows", "blocks") if product_kernel(setting.device, scaling == "rows")]
    if not scalings:
        record.note("FP8 products of few tokens are torch's on this device")
        return
    deadline_s = time.monotonic() + BUDGET_S
    bytes_per_s = limits_of(setting).bytes_per_s
    for shape, scaling in product(SHAPES, scalings):
        weights, times = weights_of(shape, scaling, setting.device), []
        for num_tokens in COUNTS:
            x = torch.randn(num_tokens, shape[1], device=setting.device).bfloat16()
            kernel_s = seconds_of_products([partial(weight, x) for weight in weights])
            torch_s = seconds_of_products([partial(weight.torch_product, x) for weight in weights])
            share = 100 * shape[0] * shape[1] / kernel_s / bytes_per_s
            times.append(
                f"{num_tokens} tokens kernel {kernel_s * 1e6:.1f} us ({share:.0f}% of a copy's bandwidth), "
                f"torch {torch_s * 1e6:.1f} us"
            )
        record.note(f"FP8 product {shape[0]} x {shape[1]}, scales of {scaling}: {'; '.join(times)}")
    for scaling, tiling in product(reversed(scalings), TILINGS):
        if time.monotonic() > deadline_s:
            record.note(f"the tiling {tiling} for scales of {scaling} was not measured: {BUDGET_S:g} s have passed")
            continue
        rows, warps, stages = tiling
        case = f"FP8 products, scales of {scaling}, tiling of {rows} rows, {warps} warps, {stages} stages"
        record.attempt(case, partial(note_tiling, setting, record, case, scaling, tiling))


def note_tiling(setting: Setting, record: Record, case: str, scaling: str, tiling: tuple[int, int, int]) -> None:
    """Note the times of a tiling for all shapes."""
    from baton.engine.layers.fp8_tokens.product_triton import Tiling
    from baton.engine.layers.fp8_tokens.product_triton import product as tiled_product

    times = []
    for shape in SHAPES:
        weights = weights_of(shape, scaling, setting.device)
        found = []
        for num_tokens in TILING_COUNTS:
            x = torch.randn(num_tokens, shape[1], device=setting.device).bfloat16()
            calls = [partial(tiled_product, x, weight.matrix, None, Tiling(*tiling)) for weight in weights]
            found.append(f"{seconds_of_products(calls) * 1e6:.1f}")
        times.append(f"{shape[0]} x {shape[1]} {' and '.join(found)} us")
    counts = " and ".join(map(str, TILING_COUNTS))
    record.note(f"{case}, {counts} tokens: {', '.join(times)}")


def weights_of(shape: tuple[int, int], scaling: str, device: torch.device) -> list[Weight]:
    """Return random weights that do not fit into the GPU's cache together."""
    num_outputs, size = shape
    weights: list[Weight] = []
    for _ in range(-(-WEIGHT_BYTES // (num_outputs * size))):
        values = torch.randint(0, 127, shape, dtype=torch.uint8, device=device).view(E4M3)  # without NaN
        if scaling == "rows":
            weights.append(RowScaledWeight(values, torch.rand(num_outputs, 1, device=device)))
        else:
            grid = torch.rand(num_outputs // BLOCK, size // BLOCK, device=device).repeat_interleave(BLOCK, 0)
            weights.append(BlockScaledWeight.of(values, grid))
    return weights


def seconds_of_products(calls: list[Callable[[], Tensor]]) -> float:
    """Return the seconds of one of several calls in a CUDA graph, which calls them in turn."""
    calls[0]()
    num_calls = -(-FEWEST_CALLS // len(calls)) * len(calls)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for call in islice(cycle(calls), num_calls):
            call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    graph.replay()
    start.record()
    for _ in range(NUM_REPLAYS):
        graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / NUM_REPLAYS / num_calls
