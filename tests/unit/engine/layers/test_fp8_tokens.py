"""Quantisation of tokens to FP8: padding, the Triton kernel, and its fallback."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from baton.engine.layers.fp8_tokens import quantise as module
from baton.engine.layers.fp8_tokens.quantise import is_same, quantise, quantise_in_torch, quantise_kernel
from tests.paged_model import CPU


def drawn(num_tokens: int, size: int) -> Tensor:
    x = torch.randn(num_tokens, size, generator=torch.Generator().manual_seed(size))
    return (x * torch.logspace(-3, 3, num_tokens)[:, None]).bfloat16()


@pytest.mark.parametrize("num_tokens", [1, 4, 6])
def test_padding_rows_are_zero(num_tokens: int) -> None:
    x = drawn(num_tokens, 256)
    values, scales = quantise(x, 128, 4)
    num_rows = -(-num_tokens // 4) * 4
    assert values.shape == (num_rows, 256)
    assert scales.shape == (num_rows, 2)
    assert scales.stride() == (1, num_rows)
    assert values[num_tokens:].float().eq(0).all()
    assert (scales > 0).all()
    alone = quantise(x, 128)
    assert is_same(values[:num_tokens], alone[0])
    assert is_same(scales[:num_tokens], alone[1])


def test_sameness_is_of_bits_apart_from_nan() -> None:
    zeros = torch.tensor([0.0, -0.0, torch.nan, 1.0])
    for dtype in (torch.float32, torch.float8_e4m3fn):
        first = zeros.to(dtype)
        assert is_same(first, first.clone())
        assert is_same(first, torch.tensor([0.0, -0.0, -torch.nan, 1.0]).to(dtype))
        assert not is_same(first, torch.tensor([0.0, 0.0, torch.nan, 1.0]).to(dtype))
        assert not is_same(first, torch.tensor([0.0, -0.0, 1.0, 1.0]).to(dtype))
    assert not is_same(zeros, zeros[:3])


def test_a_kernel_is_used_only_if_its_results_are_right(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def wrong(x: Tensor, width: int, num_rows: int) -> tuple[Tensor, Tensor]:
        values, scales = quantise_in_torch(x, width, num_rows)
        return values, scales * 2

    def missing() -> module.Quantise:
        raise ImportError("No module named 'triton'")

    find = quantise_kernel.__wrapped__
    monkeypatch.setattr(module, "load_kernel", lambda: quantise_in_torch)
    assert find(CPU) is quantise_in_torch
    assert not caplog.messages
    with caplog.at_level(logging.WARNING):
        monkeypatch.setattr(module, "load_kernel", lambda: wrong)
        assert find(CPU) is None
        monkeypatch.setattr(module, "load_kernel", missing)
        assert find(CPU) is None
    first = "tokens are quantised by torch's operations, since Triton does not work here: "
    assert caplog.messages == [
        first + "ArithmeticError: its results are wrong",
        first + "ImportError: No module named 'triton'",
    ]


# Triton's interpreter does not round to e4m3 to nearest even as GPUs do, so torch rounds instead.
IN_TRITON = """
import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

convert = interpreter._convert_float


def convert_as_gpus_do(values, from_dtype, to_dtype, rounding):
    if to_dtype != tl.float8e4nv:
        return convert(values, from_dtype, to_dtype, rounding)
    rounded = torch.from_numpy(np.ascontiguousarray(values)).to(torch.float8_e4m3fn)
    return rounded.view(torch.uint8).numpy()


interpreter._convert_float = convert_as_gpus_do
from baton.engine.layers.fp8_tokens.quantise import is_same, quantise_in_torch
from baton.engine.layers.fp8_tokens.quantise_triton import quantise

every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
finite = torch.where(every.isfinite(), every, 0)
order = finite.float().argsort()
some = torch.randn(5, 8448, generator=torch.Generator().manual_seed(0)).bfloat16()
cases = [
    (every.view(256, 256), 128, 256),
    (every.view(256, 256), 256, 256),
    (finite[order].view(64, 1024), 1024, 64),
    (torch.zeros(2, 640).bfloat16(), 128, 4),
    (some[:1, :640], 128, 4),
    (some[:3, :640], 640, 3),
    (some[:, :4224], 128, 8),  # rows that are not next to each other
    (some, 8448, 5),
]
for x, width, num_rows in cases:
    found, expected = quantise(x, width, num_rows), quantise_in_torch(x, width, num_rows)
    for first, second in zip(found, expected):
        assert is_same(first, second), (x.shape, width)
        assert first.stride() == second.stride(), (x.shape, width)
print("equal")
"""

# What a GPU executes, without a GPU: exact divisions, and conversions to the nearest e4m3.
FOR_HOPPER = """
import re
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from baton.engine.layers.fp8_tokens.quantise_triton import _quantise

names = _quantise.arg_names
integers = dict.fromkeys(("row_stride", "num_stretches", "num_tokens", "num_rows"), "i32")
for width, lanes, stretches, warps in ((128, 128, 16, 4), (12288, 16384, 1, 16)):
    sizes = {"WIDTH": width, "LANES": lanes, "STRETCHES": stretches}
    signature = {"x": "*bf16", "values": "*fp8e4nv", "scales": "*fp32"} | integers | dict.fromkeys(sizes, "constexpr")
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in ("x", "values", "scales", "row_stride")}
    source = ASTSource(_quantise, signature, {(names.index(name),): size for name, size in sizes.items()}, aligned)
    ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps}).asm["ptx"]
    found = set(re.findall(r"(?:ld\\.global|st\\.global|div|cvt|fma|mul)\\.[\\w.:]*(?:f32|b32)\\b", ptx))
    assert {"ld.global.v4.b32", "st.global.v4.b32", "div.rn.f32", "cvt.rn.satfinite.e4m3x2.f32"} <= found, found
    assert not {"div.full.f32", "fma.rn.f32", "mul.ftz.f32"} & found, found
print("compiled")
"""


def run_python(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_triton_kernel_matches_torch() -> None:
    """Run Triton's interpreter in a subprocess, since it must be selected before Triton is imported."""
    pytest.importorskip("triton", reason="Triton comes with torch for GPUs")
    run = run_python(IN_TRITON, TRITON_INTERPRET="1")
    assert run.stdout == "equal\n", run.stderr


@pytest.mark.slow
def test_the_triton_kernel_compiles_to_exact_instructions(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="Triton comes with torch for GPUs")
    run = run_python(FOR_HOPPER, TRITON_CACHE_DIR=str(tmp_path))
    assert run.stdout == "compiled\n", run.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="runs the kernel on a real GPU")
@pytest.mark.parametrize("width", [128, 1280])
def test_the_kernel_matches_torch_on_a_gpu(width: int) -> None:
    gpu = torch.device("cuda")
    if torch.cuda.get_device_capability(gpu) < (8, 9):
        pytest.skip("this GPU has no FP8")
    assert quantise_kernel(gpu) is not None
    x = drawn(6, 1280).to(gpu)
    assert all(map(is_same, quantise(x, width, 4), quantise_in_torch(x, width, 8)))
