"""Tokens that the device's kernel quantises to FP8 compared with torch's operations on the same device."""

from collections.abc import Iterator

import torch
from torch import Tensor

from baton.engine.layers.fp8_tokens.quantise import is_same, quantise, quantise_in_torch, quantise_kernel
from baton.engine.layers.weights.fp8_weight import BLOCK, TOKEN_TILE
from benchmarks.gpu.stage import Record, Setting

SHAPES = ((1, 4096), (1, 32768), (3, 12288), (64, 4096), (130, 1408), (2048, 12288))  # tokens, columns


def check_tokens(record: Record, setting: Setting) -> None:
    """Compare values and scales bit by bit, for scales per row and per 128 columns, also with padding rows."""
    if setting.device.type != "cuda":
        record.note("tokens are quantised to FP8 by torch on this device: its kernel needs a GPU")
        return
    kernel = quantise_kernel(setting.device)
    record.find("kernel that quantises tokens", kernel is not None, "must work, or the log gives the reason")
    if kernel is None:
        return
    for name, x in inputs(setting):
        for width in (BLOCK, x.shape[1]):
            case = f"tokens, {name}, {len(x)} x {x.shape[1]}, scales per {width} columns"
            for num_rows in sorted({len(x), -(-len(x) // TOKEN_TILE) * TOKEN_TILE}):
                values, scales = kernel(x, width, num_rows)
                expected_values, expected_scales = quantise_in_torch(x, width, num_rows)
                same = {"values": is_same(values, expected_values), "scales": is_same(scales, expected_scales)}
                differing = (
                    " and ".join(name for name, is_equal in same.items() if not is_equal) or "no values or scales"
                )
                record.find(case, all(same.values()), f"{differing} of {num_rows} rows differ in their bits")
    record.attempt("tokens, in a CUDA graph", lambda: check_recorded(record, setting))


def inputs(setting: Setting) -> Iterator[tuple[str, Tensor]]:
    """Yield named tokens [num_tokens, size] in bfloat16."""
    device, generator = setting.device, torch.Generator(setting.device).manual_seed(0)
    for shape in SHAPES:
        magnitudes = torch.logspace(-20, 20, shape[0], device=device)[:, None] if shape[0] > 1 else 1.0
        yield "random", (torch.randn(shape, device=device, generator=generator) * magnitudes).bfloat16()
    every = torch.arange(1 << 16, device=device, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    yield "every bfloat16", every.view(64, 1024)
    finite = torch.where(every.isfinite(), every, 0)
    yield "every finite bfloat16 in order", finite[finite.float().argsort()].view(64, 1024)
    yield "rows that are not next to each other", finite.view(16, 4096)[:, :1024]
    special = torch.randn(7, 512, device=device, generator=generator).bfloat16()
    special[0], special[1, 5], special[2, 5], special[3, 5] = 0, torch.inf, -torch.inf, torch.nan
    special[4] *= 1e-38
    special[5, :BLOCK] = 0
    yield "zeros, infinities, NaN and subnormal numbers", special


def check_recorded(record: Record, setting: Setting) -> None:
    """Replay a recorded call on other tokens."""
    x = torch.randn(5, 4096, device=setting.device).bfloat16()
    quantise(x, BLOCK, TOKEN_TILE)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        recorded = quantise(x, BLOCK, TOKEN_TILE)
    x.copy_(torch.randn_like(x))
    graph.replay()
    expected = quantise_in_torch(x, BLOCK, len(recorded[0]))
    record.find("tokens, in a CUDA graph", all(map(is_same, recorded, expected)), "equal to torch's bit by bit")
