"""FP8 products of few tokens by the device's kernel compared with torch's, and with exact sums of the same numbers."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from baton.engine.layers.fp8_tokens.product import HOPPER, MOST_TOKENS, Product, exact_product, product_kernel
from baton.engine.layers.fp8_tokens.quantise import E4M3
from baton.engine.layers.weights.fp8_weight import BLOCK, BlockScaledWeight, RowScaledWeight
from benchmarks.gpu.numerics.closeness import OPERATION
from benchmarks.gpu.stage import Record, Setting

SHAPES = ((6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288), (272, 640), (1104, 1152))  # outputs, size
SMALL_SHAPES = SHAPES[-2:]  # also with a bias, and compared with double precision
COUNTS = (1, 3, 5, MOST_TOKENS)
IDENTITY = 1024

Weight = RowScaledWeight | BlockScaledWeight


def of_rows(values: Tensor) -> Weight:
    """Return a weight with random scales of rows."""
    return RowScaledWeight(values, torch.rand(len(values), 1, device=values.device) + 0.5)


def of_blocks(values: Tensor, first: int = 0) -> Weight:
    """Return a weight with random scales of blocks; its first row is row `first` of a block."""
    block = (torch.arange(len(values), device=values.device) + first) // BLOCK
    grid = torch.rand(int(block[-1]) + 1, values.shape[1] // BLOCK, device=values.device) + 0.5
    return BlockScaledWeight.of(values, grid[block])


SCALINGS: dict[str, Callable[[Tensor], Weight]] = {
    "a scale per row": of_rows, "per block": of_blocks, "per 128 columns of a row": partial(of_blocks, first=80),
}  # fmt: skip


def check_products(record: Record, setting: Setting) -> None:
    """Compare results for all scalings, with and without a bias, recorded and not."""
    device = setting.device
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != HOPPER:
        record.note("FP8 products of few tokens are torch's on this device: their kernel needs a Hopper GPU")
        return
    for scaling, scaled in SCALINGS.items():
        kernel = product_kernel(device, scaled is of_rows)
        record.find(
            f"kernel of few-token products, {scaling}", kernel is not None, "must work, or the log gives the reason"
        )
        if kernel is None:
            continue
        for num_outputs, size in SHAPES if scaled in (of_rows, of_blocks) else SMALL_SHAPES:
            case = f"few-token products, {scaling}, {num_outputs} x {size}"
            values = torch.randn(num_outputs, size, device=device).to(E4M3)
            record.attempt(case, partial(compare_counts, record, case, kernel, scaled(values)))
        case = f"few-token products, {scaling}, rounding of tokens"
        identity = torch.eye(IDENTITY, device=device).to(E4M3)
        record.attempt(case, partial(check_rounding, record, case, kernel, scaled(identity)))
        case = f"few-token products, {scaling}, in a CUDA graph"
        record.attempt(case, partial(check_recorded, record, case, scaled(identity)))


def compare_counts(record: Record, case: str, kernel: Product, weight: Weight) -> None:
    """Compare products of 1 to 8 tokens."""
    num_outputs, size = weight.matrix.num_outputs, weight.values.shape[1]
    bias = torch.randn(num_outputs, device=weight.values.device).bfloat16()
    limits = OPERATION[torch.bfloat16]
    is_small = (num_outputs, size) in SMALL_SHAPES
    for num_tokens in COUNTS:
        x = torch.randn(num_tokens, size + BLOCK, device=bias.device).bfloat16()[:, :size]
        x[:, ::97] *= 30  # outliers
        result = kernel(x, weight.matrix, None)
        record.compare(f"{case}, {num_tokens} tokens", result, weight.torch_product(x), limits)
        if is_small:
            record.compare(f"{case}, {num_tokens} tokens, exact", result, exact_product(x, weight.matrix), limits)
            biased = kernel(x, weight.matrix, bias)
            record.compare(f"{case}, {num_tokens} tokens, a bias", biased, result + bias, limits)


def check_rounding(record: Record, case: str, kernel: Product, weight: Weight) -> None:
    """Multiply with the identity, whose product shows how each element was rounded: an error of one is 3% at least."""
    numbers = torch.arange(128, 256, device=weight.values.device).repeat(8)
    numbers = numbers * 2.0 ** -torch.arange(8, device=numbers.device).repeat_interleave(128)
    wrong = 0
    for first in range(128, 256, MOST_TOKENS):
        peaks = torch.arange(first, first + MOST_TOKENS, device=numbers.device)[:, None].float()
        x = torch.minimum(numbers, peaks).bfloat16()
        x[:, ::BLOCK] = peaks.bfloat16()
        expected = exact_product(x, weight.matrix)
        wrong += int(((kernel(x, weight.matrix, None) - expected).abs() > 2**-7 * expected.abs()).sum())
    record.find(case, wrong == 0, f"{wrong} elements differ from torch's rounding")


def check_recorded(record: Record, case: str, weight: Weight) -> None:
    """Replay a recorded call on other tokens."""
    x = torch.randn(5, IDENTITY, device=weight.values.device).bfloat16()
    weight(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        recorded = weight(x)
    x.copy_(torch.randn_like(x))
    graph.replay()
    record.find(case, torch.equal(recorded, weight(x)), "the same bits as without a graph")
